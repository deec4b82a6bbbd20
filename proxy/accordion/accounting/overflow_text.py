"""Reads the text of an error: whether it says that the input was too long, and the figures that it names.

There is no list of servers. A sentence is split into terms: nouns (the input, the window, the output, other things),
phrases that say "too much", and figures. It reports an overflow if a phrase's subject, the nearest noun before it, is
the input or the window. So "image exceeds 5 MB" and "max_tokens exceeds the limit" report none, whatever else the
sentence names. A figure is the limit, the size or the output by the words beside it. A short text that names an input
and two figures reports one too, whatever its phrase, if the smaller one is a limit and the larger one a size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

_INPUT, _WINDOW, _WEAK, _OUTPUT, _OTHER = "input", "window", "weak", "output", "other"
_NOUNS = frozenset({_INPUT, _WINDOW, _WEAK, _OUTPUT, _OTHER})
_EXCESS, _MANY, _REDUCE, _FIGURE, _OTHER_FIGURE = "excess", "many", "reduce", "figure", "other_figure"

_MEDIA = r"(?:image|picture|audio|video|file|document|attachment|pdf)s?"
_OTHER_MEDIA = (
    r"图片|文件|图像|画像|ファイル|이미지|파일"
    r"|(?u:\b(?:imagen|imágenes|imagem|imagens|immagin[ei]|bild(?:er|es)?|fichiers?|archivos?|arquivos?|datei(?:en)?"
    r"|изображени\w*|картин\w*|файл\w*)\b)"
)
# The first alternative that matches decides.
_TERMS = {
    _OTHER: rf"\b(?:input|prompt)[ _](?:{_MEDIA}|schema|cache\w*|id)\b|\b{_MEDIA}[ _](?:inputs?|prompts?|tokens?)\b"
    r"|\bcontext edits?\b|\b(?:tool|function|system) \w+ (?=exceed|is too)"
    r"|\b(?:access|auth\w*|refresh|bearer|csrf|session) tokens?\b"
    rf"|\b(?:{_MEDIA}|\w+_(?:id|key|name|schema|logprobs|url)|pages?|tools?|functions?|declarations?|schemas?|names?"
    r"|ids?|strings?|arrays?|fields?|descriptions?|metadata|keys?|headers?|ur[il]s?|payload|candidates?|batch|stop"
    r"|turns?|retries|iterations?|deadline|timeouts?|time|duration|dimensions?|depth|spend|user|fingerprint"
    r"|logit_bias|temperature|threads?|characters|index|offset|inputs(?= ?(?:,|:|must be an|per\b))|n)\b|"
    + _OTHER_MEDIA,
    _OUTPUT: r"\bmax(?:imum)?[ _-]?(?:(?:output|completion|new|generat\w+|response)[ _-]?)?tokens?\b"
    r"(?! (?:limit|allowed|supported))"
    r"|\b(?:output|completion|generated|response|reasoning|thinking|budget)[ _.-](?:tokens?|budget|length)\b"
    r"|\boutput\b|\bcompletion\b|\bresponse\b"
    r"|(?:输出|回复|出力|生成|출력|응답) ?(?:tokens?|トークン|토큰)?"
    r"|(?u:\b(?:sortie|réponse|salida|respuesta|saída|resposta|uscita|risposta|ausgabe|antwort|вывод\w*|ответ\w*)\b)",
    _WINDOW: r"(?:context|ontert)[ _-]?(?:window|length|size|limit|budget|tokens?)|\b(?:n_)?ctx\b"
    r"|\bsession[ _]len(?:gth)?\b"
    r"|\bmax_(?:model_len|seq_len|kv_size|num_tokens|total_tokens|position_embeddings|input_tokens|prompt_tokens|input_len)\b"
    r"|\bmax(?:imum)? (?:allowed |supported |model |message )?(?:input|prompt|sequence|context)"
    r"(?: tokens?| token limit)?\b"
    r"|\bmax(?:imum)? (?:number of )?(?:message |total )?tokens\b"
    r"|\b(?:input |prompt )?tokens? ?limits?\b|\bmodel'?s? (?:limit|context|maximum(?= ?\())\b"
    r"|上下文(?:长度|窗口)?|컨텍스트|コンテキスト"
    r"|(?u:контекст\w*|kontext\w*|\bcontext[eo]\b|\bcontesto\b|(?:лимит|предел)\w* токен\w*)",
    _INPUT: r"\bprompts?|\binputs?|\btokens?\b|\w_tokens?\b|\bconversation\b|\bsequence\b|\bcontext\b|total text bytes"
    r"|输入|提示|历史记录|提问内容|入力|トークン|プロンプト|입력|토큰"
    r"|(?u:\b(?:entrada|eingabe|entrée|jetons)\b|токен|промпт)",
    _WEAK: r"\brequests?\b|\bmessages?\b|\bquery\b|\bbody\b|请求"
    r"|(?u:\b(?:requête|solicitud|anfrage)\b|запрос(?!ов))",
    _MANY: r"\btoo many\b|\btoo much (?:text|input|context|history)\b|(?u:слишком много)",
    _EXCESS: r"\btoo ?(?:long|large|big)|toolong|toolarge|exceed"
    r"|(?<!be )\b(?:longer|larger|greater|bigger|higher|more) than\b"
    r"|\boverflow|\babove\b(?! threshold)|\bsurpass|\bbeyond\b|\b(?:does|do)(?: not|n't) fit|\bno longer fits?"
    r"|\breached\b|\bfull\b"
    r"|\b(?:must|should|can)(?: be| have)? (?:<=?|≤|\[|less than|smaller than|at most|no more than|below)"
    r"|超过|超出|超长|过长|太长|超限|超え|長すぎ|초과"
    r"|\bover (?:the|its|this|our) (?:model|limit|max|context|window)|\bcan(?:'t|not) fit"
    r"|(?u:\bsupera|\bexced|\bdépass|\büberschr|\büberst|\bzu (?:lang|groß)|\btrop (?:long|grand)"
    r"|\bdemasiad\w+ larg|\blong[oa] demais|\btroppo lung|превы|слишком (?:длин|больш|велик)|переполнен|больше"
    r"|не (?:по|в)мещ)",
    _REDUCE: r"\b(?:reduce|decrease|shorten)\b",
    _OTHER_FIGURE: r"\b\d+ ?[x×] ?\d+\b",
    _FIGURE: r"(?<![\w.#-])(?!(?<=<)\d+>)(?:\d{1,3}(?:[.'’\u00a0\u202f]\d{3})+(?!\d|[km]\b)|\d[\d,_]{0,14}"
    r"(?:\.\d{1,6})?(?:[km]\b)?)"
    r"(?![.,]?\d|[km]\b|[\w-]*[a-z]\b(?<!token)(?<!tokens))",
}
_TERM = "|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _TERMS.items())
_OTHER_UNIT = (
    r"\s?(?:[kmg]i?b\b|bytes?\b|char|images?\b|pages?\b|items?\b|files?\b|elements|entries|blocks|tools\b|functions\b"
    r"|messages?\b|minutes?\b|seconds?\b|hours?\b|ms\b|px\b|pixels|lines\b|dimensions|documents\b|parts\b|texts\b|objects?\b|propert|%|次|张)"
)
_SENTENCE_END = r"[.!?]\s+|[。！？\n]"

_OWNER = r"\b(?:account|organi[sz]ation|project|workspace|team|tier|subscription|user|key|today|week|month)\b"
_FLOOR = r"\bmin(?:imum)?\b|\bat least\b|(?u:\bmínim|минимум|не менее)"
_LONGEST_PAIR, _SMALLEST_WINDOW = 300, 512
_THOUSANDS = re.compile(r"\d{1,3}(?:\.\d{3})+")

_OTHER_LIMIT = (
    r"rate.?limit|call rate|per.?(?:min|second|hour|day|month)|\bTP[MD]\b|\bRP[MD]\b|quota|billing|\bcredits?\b|afford"
    r"|\b(?:dai|hour|week|month)ly\b|balance|too many requests|throttl|slow down|please wait|try again (?:later|in )"
    r"|retry (?:after|in)|\d seconds"
    r"|usage limit|\bplan\b|concurren|overloaded|over budget|\bprice|\bspend|polic(?:y|ies)|safety|flagged"
    r"|inappropriate|\bthis (?:minute|hour|day|month|key)|\btoday\b|/ ?min|\d[mhd] window|\brate\b|throughput"
    r"|\bqueue|token usage|[每本][分天日月]|今[天日]|分钟|小时|频繁|速率|并发|额度|配额|套餐|账户|充值|余额|稍后再试"
    r"|超时|[分日月]あたり|1日の|月間|時間|レート|利用枠|残高|분당|시간|일일|하루|월간|사용량|할당량|잔액"
    r"|(?u:\bminut[eo]s?\b|seconde|segundo|sekunde|\bheures?\b|\bhoras?\b|stunde|\btags?\b|täglich|tageslimit|monat"
    r"|\bjour|quotidien|mens(?:ue|ua|a|i)l|\bd[ií]as?\b|\bdi[aá]ri[ao]|giorn|\btemps\b|\btiempo\b|\btempo\b|zeit"
    r"|\bdébit|\bveloci[dt]|\btasa\b|\btaxa\b|ratenlimit|\bcuota|\bcota\b|kontingent|crédit|\bcredit[oi]|\bsolde\b|\bsaldo\b"
    r"|guthaben|\bврем|секунд|минут|\bчас(?:а|ов)?\b|\bдень\b|\bдн[еяю]|\bсут|месяц|месяч|квот|баланс|средств|тариф"
    r"|\bплан|скорост|частот|повторите|подождите)"
)

# The words beside a figure. Before it the last one decides.
_CUE = (
    r"(?P<limit>(?P<firm>\bm[aá]x[a-z_]*(?: (?:number|of|allowed|supported|model|prompt|input|sequence|context|message"
    r"|token|tokens|length|size|limit|window|total|is|kv)\b)*|\[[01], ?$|\blimit\w*"
    r"|context[ _-]?(?:window|length|size|limit)|\bn_ctx\b"
    r"|(?:最大|上限|限制)(?:上下文)?(?:长度)?)|exceed\w*|\bthan\b|[<>]=?|≤|\bup to|\bat most"
    r"|\bonly\b|\bbudget|\bcapacity|\bcontext\b|\bwindow\b|\bfit\b"
    r"|(?u:\berlaubt\w*|\bhöchstens|\bnur\b|\bl[ií]mite?\b|максим\w*|лимит\w*|предел\w*|не более|допустим\w*"
    r"|\bmassim\w*)|最大|最多|최대"
    r"|\ballowed|\bvs\b|\bsupports?\b|\bbound\b|\bbeyond|\bsession_len|^ ?/ ?$|超过|超出|支持)"
    r"|(?P<total>\brequested|\ba? ?total\b|\bsum\b|\bestimated)"
    r"|(?P<size>\bcontains?|resulted in|\bprompt[\w_]*|\binputs?|\bha[sd]\b|\bhave\b|\bgiven|\breceived|\bgot\b"
    r"|\blength"
    r"|\bcount|\bcurrent|\bused\b|\bsent\b|\bmessages?\b|n_(?:keep|tokens|prompt_tokens)|\bfirst\b|\bprovided|\bpassed|\byours\b|\bneeds?\b"
    r"|\brequest\b|\btokens:|\btoo (?:long|large)|当前|实际|输入|入力|长度"
    r"|(?u:\bhat\b|\benthält|\bcontien[et]|\bcontém|содержит))"
)
_NO_CUE = r"\b(?:by|code|status|error|id)\W{0,3}$"
_OUTPUT_AFTER = (
    r"[` ]*(?:tokens? )?(?:(?:in|for) (?:the|your) (?:completion|output|response)"
    r"|(?:output|completion|new|generated) tokens"
    r"|max_(?:new_|completion_)?tokens)"
)
_OUTPUT_BEFORE = r"max_(?:new_|completion_|output_)?tokens[`' ]*(?:is too large)?[=:( ]*$|^ \+ $"
_LIMIT_AFTER = r"[) ]*(?:tokens? )?(?:is (?:the|your) )?(?:max(?:imum)?\b|limit\b|(?:of )?context\b)"
_UNIT = r"token|jeton|токен|トークン|토큰"
_UNIT_AFTER = rf"[)\] ]*(?:input |prompt )?(?:{_UNIT})"
_SIZE_AFTER = (
    r"[)\] ]*(?:(?:input |prompt )?tokens?)?[)\] ]*"
    r"(?:> ?=? ?[a-z_]*[ :=(]*\d|/ ?\d|(?:out )?of \d|\+|has exceeded"
    r"|(?:is|are) (?:too|longer|greater|larger|above)|exceed(?!ed by)|do(?:es)? not fit|of text input)"
)


@dataclass(frozen=True, slots=True)
class OverflowText:
    """What a text says of an overflow: tokens, None if it does not say, and the words that say so."""

    limit: int | None
    requested: int | None
    output: int | None
    words: str


@dataclass(frozen=True, slots=True, order=True)
class _Term:
    kind: str
    start: int
    end: int


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    """Returns the pattern, which is compiled for the first error: it takes as long as hundreds of small requests."""
    return re.compile(pattern, re.IGNORECASE | re.ASCII)


def names_other_limit(text: str) -> bool:
    """Whether an error is about a rate, money or a policy, whatever else it names."""
    return _compile(_OTHER_LIMIT).search(text) is not None


def read_text(text: str) -> OverflowText | None:
    """Returns the overflow that a text reports; None if it reports none."""
    sentences = list(_sentences(text))
    first: OverflowText | None = None
    for index, (start, end) in enumerate(sentences):
        terms = _terms(text, start, end)
        region = text[start : sentences[min(index + 1, len(sentences) - 1)][1]].lower()
        found = _find_excess(text, terms, region)
        if found is None:
            continue
        before = sentences[max(0, index - 1)][0]
        after = sentences[min(index + 3, len(sentences) - 1)][1]
        read = _read_figures(text, found, max(before, start - 200), min(after, found[1] + 400))
        if read.limit:
            return read
        first = first or read
    return first or _read_pair(text)


def _read_pair(text: str) -> OverflowText | None:
    """Returns the overflow that a short text reports by two figures and a word for a limit."""
    terms = _terms(text, 0, len(text)) if len(text) <= _LONGEST_PAIR else []
    kinds = {term.kind for term in terms}
    if _INPUT not in kinds or not kinds.isdisjoint({_OUTPUT, _OTHER, _OTHER_FIGURE}):
        return None
    if _compile(_OWNER).search(text) or _compile(_FLOOR).search(text):
        return None
    figures = sorted((_number(text[term.start : term.end]), term) for term in terms if term.kind == _FIGURE)
    figures = [(number, term) for number, term in figures if number >= _SMALLEST_WINDOW]
    if len(figures) != 2:
        return None
    (limit, at_limit), (size, at_size) = figures
    roles = [_role(text[: term.start], text[term.end :])[0] for term in (at_limit, at_size)]
    is_size = roles[1] == "size" or _compile(_UNIT_AFTER).match(text, at_size.end) is not None
    if roles[0] != "limit" or not is_size or limit == size:
        return None
    words = text[min(at_limit.start, at_size.start) : max(at_limit.end, at_size.end)]
    return OverflowText(limit, size, None, words)


def _sentences(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    for match in _compile(_SENTENCE_END).finditer(text):
        yield start, match.start()
        start = match.end()
    yield start, len(text)


def _terms(text: str, start: int, end: int) -> list[_Term]:
    other_unit = _compile(_OTHER_UNIT)
    terms = []
    for match in _compile(_TERM).finditer(text, start, end):
        kind = match.lastgroup or ""
        if kind == _FIGURE and other_unit.match(text, match.end()):
            kind = _OTHER_FIGURE
        terms.append(_Term(kind, match.start(), match.end()))
    return terms


def _find_excess(text: str, terms: list[_Term], region: str) -> tuple[int, int] | None:
    """Returns the span of the words that say that the input is too long; None if a sentence does not say so."""
    names_tokens = _compile(_UNIT + "|context|kontext|контекст").search(region) is not None
    if not names_tokens and _OTHER_FIGURE in {term.kind for term in _terms(region, 0, len(region))}:
        return None
    spans: list[tuple[int, int]] = []
    is_about_output = False
    subject: _Term | None = None
    former: _Term | None = None
    for index, term in enumerate(terms):
        if term.kind in _NOUNS:
            # "The output (9000 tokens)", "an image of 9000 tokens": there the tokens are a unit.
            if not (subject is not None and subject.kind in (_OUTPUT, _OTHER) and terms[index - 1].kind == _FIGURE):
                former, subject = subject, term
        elif term.kind in (_EXCESS, _MANY, _REDUCE):
            verb_object = next((noun for noun in terms[index + 1 : index + 4] if noun.kind in _NOUNS), None)
            if former is not None and subject is not None and subject.kind == _OUTPUT:
                is_joined = re.search(r"\band\b|\bplus\b|\+", text[former.end : subject.start])
                subject = former if is_joined else subject
            span = _judge(term, subject, verb_object, names_tokens=names_tokens)
            is_about_output = is_about_output or (subject is not None and subject.kind == _OUTPUT and span is None)
            if span is not None:
                spans.append(span)
        elif term.kind == _FIGURE and index and _states_limit(text, terms, index):
            spans.append((terms[index - 1].start, term.end))
    # "Too many tokens: max tokens must be below 4096" is about the output, though it begins like one about the input.
    credible = (span for span in spans if not is_about_output or text[span[0] : span[1]][:4].lower() != "too ")
    return next(credible, None)


def _judge(
    phrase: _Term, subject: _Term | None, verb_object: _Term | None, *, names_tokens: bool
) -> tuple[int, int] | None:
    """Returns the span of a phrase with its noun if that is the input or the window."""
    object_kind = verb_object.kind if verb_object is not None and verb_object.start - phrase.end < 60 else ""
    if phrase.kind != _EXCESS and object_kind:
        is_input = object_kind == _INPUT or (object_kind == _WEAK and phrase.kind == _REDUCE)
        return (phrase.start, verb_object.end) if is_input and verb_object is not None else None
    if phrase.kind == _REDUCE:
        return None
    kind = subject.kind if subject is not None else ""
    if kind in (_INPUT, _WINDOW) or (kind == _WEAK and names_tokens):
        return (subject.start if subject is not None else phrase.start), phrase.end
    # "Too long prompt": there the phrase is an adjective.
    is_adjective = verb_object is not None and object_kind == _INPUT and verb_object.start - phrase.end == 1
    if kind != _OUTPUT and (object_kind == _WINDOW or is_adjective) and verb_object is not None:
        return phrase.start, verb_object.end
    return None


def _states_limit(text: str, terms: list[_Term], index: int) -> bool:
    """Whether the figure at the index is stated as the window: "maximum context length is 8192"."""
    window = terms[index - 1]
    if window.kind != _WINDOW or _is_only_output(terms[:index]):
        return False
    between = text[window.end : terms[index].start]
    return re.fullmatch(r"[ (:=]*(?:(?:length|window|size|limit|tokens?|is|of|was|only)[ (:=]*)*", between) is not None


def _is_only_output(terms: list[_Term]) -> bool:
    """Whether terms name the output and not the input."""
    kinds = {term.kind for term in terms}
    return _OUTPUT in kinds and _INPUT not in kinds


def _read_figures(text: str, span: tuple[int, int], start: int, end: int) -> OverflowText:
    """Returns the figures near the words that report an overflow."""
    values: dict[str, int] = {}
    used = [*span]
    is_firm = False
    position = start
    figures = [term for term in _terms(text, start, end) if term.kind in (_FIGURE, _OTHER_FIGURE)]
    if "bytes" in text[span[0] : span[1]]:
        figures = []
    for index, figure in enumerate(figures):
        before = text[max(position, figure.start - 80) : figure.start]
        after = text[figure.end : min(end, figures[index + 1].end if index + 1 < len(figures) else end)]
        number = _number(text[figure.start : figure.end])
        if number < 2:
            continue
        position = figure.end
        role, is_sure = _role(before, after) if figure.kind == _FIGURE else ("", False)
        if role == "limit" and role in values and not {"size", "output"} & values.keys():
            number = min(number, values.pop("limit"))
        if not role or role in values:
            continue
        values[role] = number
        is_firm = is_firm or (role == "limit" and is_sure)
        used += (figure.start, figure.end)
    limit, output, total = values.get("limit"), values.get("output"), values.get("total", 0)
    requested = (max(0, total - output) if total and output else values.get("size") or total) or None
    if limit and not requested and text[used[-2] - 1] == "(" and not _compile(_UNIT).search(text[start:end]):
        limit = None  # A code in brackets, such as MiniMax's "exceeds limit (2013)".
    if limit and requested and not is_firm and requested + (output or 0) <= limit:
        limit = requested = None
    return OverflowText(limit, requested, output, text[min(used) : max(used)])


def _role(before: str, after: str) -> tuple[str, bool]:
    """Returns what a figure is by the words before and after it, and whether a word for a limit says so."""
    if _compile(_NO_CUE).search(before):
        return "", False
    if _compile(_OUTPUT_AFTER).match(after) or _compile(_OUTPUT_BEFORE).search(before):
        return "output", False
    if _compile(_LIMIT_AFTER).match(after):
        return "limit", True
    if _compile(_SIZE_AFTER).match(after):
        return "size", False
    cues = list(_compile(_CUE).finditer(before))
    if not cues:
        return "", False
    last = cues[-1]
    return ("limit" if last["limit"] else "total" if last["total"] else "size"), last["firm"] is not None


def _number(figure: str) -> int:
    unit = {"k": 1_000, "m": 1_000_000}.get(figure[-1].lower(), 1)
    decimal = figure if unit > 1 or not _THOUSANDS.fullmatch(figure) else figure.replace(".", "")
    return round(float(re.sub(r"[^\d.]", "", decimal)) * unit)

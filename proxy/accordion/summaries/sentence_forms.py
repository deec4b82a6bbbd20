"""The forms of sentences: what distinguishes a rule from a request, a fact, a promise and a remark.

Modal verbs, negation, words such as "only" and "instead", imperatives and corrections decide, not the subject. A
lasting rule ranks above a short fact, this above a present request, and this above a sentence that only states
particulars (an amount, a date, a name, an address). The words are English, German, French, Spanish, Portuguese,
Italian, Dutch, Russian, Chinese, Japanese and Korean.

`rank_sentence` ranks a user's sentence, `rank_promise` an assistant's promise, and `parse_claim` splits a sentence into
the parts by which two sentences are compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from typing import ClassVar, Final

import msgspec
import re2

from accordion.model.words import EAST_ASIA, words_of

RULE: Final = 4
"""The rank of a lasting rule: it says never, always, only, at most, from now on, decided."""
FACT: Final = 3
"""The rank of a short sentence with particulars that can be understood alone."""
REQUEST: Final = 2
"""The rank of a request for something now."""
STATEMENT: Final = 1
"""The rank of another sentence with particulars, and of a question."""
BRIEF: Final = 120
"""Characters of a short sentence."""
_MAX_SENTENCE_LENGTH: Final = 600
"""Characters. A longer sentence is a document, not an instruction."""
_ASSERTION: Final = re.compile(r"\(\?<?[=!](?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|\\b")
"""A condition on what stands around a place, which RE2 does not have; or the boundary of an ASCII word, in RE2."""


class SentenceForm:
    """The signs of one form of sentences: words, characters of East Asia, and others. Patterns are in small letters.

    The forms have hundreds of words, and every sentence of a user is searched for most of them. So RE2 finds in one
    pass which forms a text may have (`_find_forms`). It knows no assertions and no letters but ASCII's: for these, the
    form's own expression decides, which takes many times as long.
    """

    all_forms: ClassVar[list[SentenceForm]] = []

    def __init__(self, words: str, east_asia: str = "", other: str = "") -> None:
        self._sources = words, east_asia, other
        self._has_assertion = _ASSERTION.search(words + other) is not None
        self._number = len(self.all_forms)
        self.all_forms.append(self)

    @cached_property
    def expression(self) -> re.Pattern[str]:
        """The form's own expression."""
        words, east_asia, other = self._sources
        return re.compile("|".join(filter(None, (rf"(?<!\w)(?:{words})(?!\w)", east_asia, other))))

    def pattern_for_re2(self) -> str:
        """Returns a pattern that each text of the form has."""
        words, east_asia, other = (
            _ASSERTION.sub("", each).replace(r"\w", r"[\w\x{80}-\x{10ffff}]") for each in self._sources
        )
        return "|".join(filter(None, (rf"(?:^|\W)(?:{words})(?:\W|$)", east_asia, other)))

    def is_in(self, text: str) -> bool:
        """Whether a text in small letters has one of the signs."""
        if self._number not in _find_forms(text):
            return False
        return (text.isascii() and not self._has_assertion) or self.expression.search(text) is not None


def _compile_set(patterns: Iterable[str]) -> re2.Set:
    pattern_set = re2.Set.SearchSet()
    for pattern in patterns:
        pattern_set.Add(pattern)
    pattern_set.Compile()
    return pattern_set


def _match_set(pattern_set: re2.Set, text: str) -> Sequence[int]:
    """Returns the numbers of the patterns that match a text."""
    # It refuses lone surrogates, and returns None for no match.
    return pattern_set.Match(text.encode("utf-8", "replace")) or ()


@cache
def _form_set() -> re2.Set:
    return _compile_set(form.pattern_for_re2() for form in SentenceForm.all_forms)


@lru_cache(maxsize=16)
def _find_forms(text: str) -> frozenset[int]:
    """Returns the numbers of the forms that a text in small letters may have."""
    return frozenset(_match_set(_form_set(), text))


_RETRACTIONS: Final = (
    r"misspoke|(?:mixed|mix) (?:that|it|them|this|things) up|got (?:that|it|this) wrong|(?:i|that) was wrong|"
    r"my (?:mistake|bad)|(?:scrap|scratch|strike) (?:that|what|the|this)|(?<!['’]t )(?<!not )forget (?:what|about|that|"
    r"the)|never ?mind|ignore (?:what|everything|all) (?:i|we)|disregard|on second thoughts?|i meant|"
    r"changed? (?:my|our) mind|(?:gave|told) you the wrong|(?:mich|uns) (?:vertan|geirrt|vertippt)|verwechselt|"
    r"falsch (?:gesagt|von mir)|war falsch|"
    r"mein fehler|war (?:der|die|das) falsche|richtig (?:ist|wäre)|kommando zurück|vergiss (?:das|was|die|den)|"
    r"hat sich erledigt|ich meinte|lieber doch|doch lieber|tromp[ée]e?s?|c['’]était faux|mon erreur|"
    r"(?<!n['’])oublie[zr]?(?! pas)|laisse[zr]? tomber|je voulais dire|donné (?:la|le) mauvaise?|me (?:equivoqué|"
    r"he equivocado)|(?:lo )?dije mal|te di mal|mi error|olvida(?:d|te|os)? (?:lo|de|el|la)|deja lo de|qui(?:se|"
    r"ería) decir|me enganei|esque[çc]e o|mi sono sbagliat[oa]|lascia perdere|vergist|laat maar|я ошиб\w+|забудь"
)
"""The words that withdraw an earlier statement."""
_EAST_ASIAN_RETRACTIONS: Final = (
    "[说說弄搞记記写寫给發发][错錯]|应该是|算了|不要了|别管|收回|我是说|間違え|やっぱり|잘못 ?말|취소"
)
_FOREIGN_PROHIBITIONS: Final = (
    r"niemand|finger weg|auf keinen fall|unter keinen umständen|grundsätzlich|bitte nichts|geht nichts|personne ne|"
    r"que personne|pas touche|(?:on|nous) ne \w+ (?:pas|plus|jamais)|rien ne|en aucun cas|pas une? de plus|"
    r"tout au plus|maxi|como mucho|a lo sumo|nadie|ni tocar\w*|nada de|no se (?:toc|reinici|envi|borr|cambi|us)\w+|"
    r"en ningún caso|bajo ningún concepto|cuidado con|ni uno más|ninguém|em hipótese alguma|nessuno|in nessun caso|"
    r"in geen geval|никто|ни в коем случае"
)
"""Other words that forbid."""
_PROHIBITIONS: Final = (
    r"nobody|no one|hands off|stay away|under no circumstances|whatever you do|not to be|without asking|stays? (?:as|"
    r"where|the way)|leave .{1,40}?\b(?:alone|out|as)|keep (?:it|that|this|them) (?:below|under|off|out)|"
    f"{_FOREIGN_PROHIBITIONS}"
)
_EAST_ASIAN_PROHIBITIONS: Final = (
    "别(?![人的处名管])|不准|不许|不許|谁都|誰都|任何人|一律|千万|先不|先.{1,12}再|够了|就好|勿|아무도"
)
_CONDITIONAL_ORDERS: Final = (
    r"(?:wenn|falls|bevor|sobald|solange|ehe) (?!du (?:zeit|fertig|magst|willst|kannst))[^.!?]+, (?:dann |"
    r"bitte )*(?:brich|stopp\w*|frag\w*|halt\w*|melde?|sag|warte|nimm|nutz\w*|verwend\w*|schreib\w*|lass|gib|prüf\w*|"
    r"beende|antworte)|(?:si|quand|avant (?:de|d['’])|dès que|tant que) ?[^.!?]+, (?:alors )?(?:arrête\w*|demande\w*|"
    r"préviens|attends|utilise\w*|écris|réponds|vérifie\w*|dis-moi|ne \w+)|(?:si|cuando|antes de|en cuanto|"
    r"mientras) [^.!?]+, (?:entonces )?(?:det[eé]n\w*|preg[uú]nta\w*|av[ií]sa\w*|espera|usa|escribe|responde|verifica|"
    r"no \w+es)"
)
"""Orders under a condition."""
_REPEALS: Final = (
    r"gilt (?:\w+ )?nicht mehr|aufgehoben|hinfällig|(?:ne s['’]applique\w*|n['’]est|ne vaut) plus|ya no (?:vale|aplica|"
    r"rige|es necesario)|не действует"
)
"""The words that end a rule."""
_EAST_ASIAN_RULES: Final = (
    "作废|不再适用|没有[^。]*(?:同意|许可|批准|允许)|先(?:问|告诉|确认|通知)|(?:如果|若|一旦|当)[^。]*(?:立刻|立即|"
    "马上|请|停止|通知)|無効|ルールは忘れ|て(?:は)?(?:いけ|なら)(?:ません|ない)|許可なし|すること(?=[。.]|$)|"
    "[うくぐすつぬぶむる]な(?=[。.!！]|$)|(?:たら|れば|場合は?|前に|なら)[^。]*[てで](?:ください|下さい|くれ)"
)
_LASTING_WORDS = SentenceForm(
    f"{_FOREIGN_PROHIBITIONS}|{_CONDITIONAL_ORDERS}|{_REPEALS}|"
    r"ohne (?:meine|unsere|ihre) (?:freigabe|erlaubnis|zustimmung)|\w+st du (?:\w+ )?(?:nicht|nie|nichts|kein\w*)|"
    r"^bitte \w+ [^,.?]*(?<!\w)nicht|sans (?:mon|notre|son|l['’]) ?accord|sin (?:mi|nuestr[oa]|previ[oa]) (?:permiso|"
    r"aprobación)|nie(?:mals)?|immer|muss|müssen|darf|dürfen|nur|ab (?:jetzt|sofort)|höchstens|mindestens|bevorzug\w*|"
    r"lieber|jede[mnrs]?|verboten|erlaubt|entschieden|beschlossen|stattdessen|keinesfalls|jamais|toujours|doi(?:t|"
    r"vent)|il (?:ne )?faut|interdit|uniquement|seulement|préfèr\w*|préférer?|au (?:plus|moins)|désormais|dorénavant|"
    r"décidé|chaque|nunca|siempre|sempre|debe(?:n|mos)?|deve(?:m|mos)?|sólo|solo (?:el|la|los|las|en|con|un|una|por|"
    r"para|si|se|que|usa)|solamente|apenas|somente|prohibid\w*|proibid\w*|prefier\w*|prefir\w*|a partir de (?:ahora|"
    r"agora|hoy|hoje)|(?:como|no) máximo|(?:al|ao|pelo) menos|decidido|cada|sin permiso|no (?:envíes|uses|toques|"
    r"borres|cambies)|mai|devono|soltanto|vietat\w*|preferisc\w*|d['’]ora in poi|al massimo|almeno|deciso|nooit|"
    r"altijd|moet(?:en)?|mag niet|mogen niet|alleen|liever|voortaan|hoogstens|minstens|besloten|никогда|всегда|нельзя|"
    r"долж\w+|только|предпочита\w*|отныне|запрещ\w*|обязательно|решили",
    f"{_EAST_ASIAN_PROHIBITIONS}|"
    "不要|不得|必须|必須|禁止|永远|始终|只能|不可|务必|优先|優先|改为|改成|从现在起|以后|最多|最少|决定|決定|"
    f"{_EAST_ASIAN_RULES}|"
    "ないで(?!す|した|しょ)|べき|必ず|決して|常に|だけ|今後|これから|ではなく|하지 ?마|지 ?마|반드시|금지|절대|항상|"
    "앞으로|결정",
)
"""The signs of a lasting rule in other languages than English."""
_REPORTED = re.compile(
    r"(?<!\w)(?:(?:il|elle|ils|elles|ça) (?!faut|doit|doivent)\w+ (?:toujours|jamais)|toujours pas|(?:j['’]|on |il |"
    r"elle |ils |elles |nous |ça )(?:n['’])?(?:ai|as?|avons|ont|avai\w+|est|était|suis) (?:\w+ ){0,2}?(?:toujours|"
    r"jamais)|ça doit|il doit (?:faire|y avoir|bien|encore)|immer (?:noch|wieder|mehr|öfter|weiter)|noch nie|"
    r"ich muss (?:jetzt|noch|leider|mal|los|gleich|heute|sagen|zugeben)|man muss|keine? (?:ahnung|sorge|angst|"
    r"problem\w*|zeit|lust|idee|frage)|(?:ich|er|sie|es|das|wir|man|(?:mein|unser)\w* \w+) (?:hab|hat|bin|ist|war|kam|"
    r"komm|geh|ging|mach|find|denk|lieb|sag|durfte|musste|konnte|wollte|lach|läuft)\w* (?:\w+ ){0,3}?(?:immer|"
    r"nie(?:mals)?|nur)|(?:siempre|nunca|jamás) (?:(?:me|te|se|les?|nos|l[oa]) )?(?:h[ae]|has|hemos|han|hab[ií]a\w*|"
    r"fu[ei]\w*|era|estaba|está|es|llega|viene|hace|dice|pasa)|now and (?:then|again)|only just)(?!\w)|"
    "我(?:们)?必[须須][^。]{0,8}了|だけ(?:い|行|だっ|でし|あり)|ことは?(?:ない|ありません)",
    re.IGNORECASE,
)
"""The words that say how something behaves, not how it has to behave."""
_LIMIT = SentenceForm(
    r"limit(?:ed)?|cap(?:ped)?|budget|deadline|due|up to|tops|(?:mehr|weniger) als .{1,60}(?<!\w)(?:nicht|kein\w*)",
)
"""The words that state a limit if the sentence has a figure."""
_RATE = SentenceForm(
    r"(?:per|an?) (?:minute|hour|day|month)|(?:pro|je) (?:minute|stunde|tag|monat)|im monat|par (?:minute|heure|jour|"
    r"mois)|por (?:minuto|hora|día|mes)",
    "每(?:分钟|小时|天|月)",
)
"""The words that may state a limit if the sentence has a figure."""
_CONDITION = SentenceForm(
    r"if|when(?:ever)?|before|wenn|falls|bevor|si|dès|avant|cuando|antes|se|als|если",
)
_ORDER = SentenceForm(
    r"first(?=[.,;]|$| and| then| before| when| if)|zuerst|erst(?! (?:mal|recht))|d['’]abord|primero|prima|eerst|"
    r"сначала",
)
"""The words that order a step before another one, in a sentence with a condition."""
_DECISION = SentenceForm(
    r"we(?:['’]re| are)? (?:go(?:ing)? (?:with|for)|us(?:e|ing)|tak(?:e|ing)|on|stick\w*|stay\w*)|wir (?:nehmen|gehen|"
    r"nutzen|verwenden|bleiben)|(?:nehmen|gehen|nutzen|verwenden|bleiben) wir|on (?:part|prend|passe|reste|garde)|"
    r"nous (?:prenons|utilisons|passons|restons|gardons)|vamos con|usamos|nos quedamos|usiamo|используем|берём",
    "我们(?:用|选|改|走)|还是用|就用",
)
"""The words by which a group decides."""
_TASTE = SentenceForm(
    r"(?:i|we)(?:['’]d)? (?:(?:really|just|only|also|always|usually|generally|typically|much|tend to) )*(?:like|love|"
    r"hate|dislike|enjoy|appreciate|avoid|favou?r|value|lean (?:to|on)\w*|(?:go|gone|went) (?:for|with)|stick (?:to|"
    r"with)|(?:work|learn|focus|sleep) (?:best|better|well))(?! (?:it|you|that|this|these|those|how|what|where|when|"
    r"the (?:way|idea|look)|to)\b)(?! your (?:\w+[.!]|$))|can['’]t stand|i(?:['’]d| would) love it if|"
    r"(?:i|we)['’]ve always (?:gone|used|worked|liked|loved|preferred)|(?:i|we) (?:usually|generally|normally|"
    r"typically|mostly|rarely) \w+|(?:i|"
    r"we) (?:don['’]?t|do not|can['’]?t|cannot|never) (?:eat|drink|like|enjoy|use|wear|care for|do well)(?! (?:it|"
    r"that|this|to)\b)|(?:i['’]m|i am) (?:(?:more|not) (?:of )?(?:an?|the) [^,.]+|(?:not )?an? (?:big )?fan\b|"
    r"allergic|vegetarian|vegan|(?:much )?(?:happiest|happier|most comfortable|more comfortable)|trying to (?:keep|"
    r"avoid|cut|save))|i feel (?:more|most) comfortable|i find [^,.]+ (?:easier|harder|better|clearer|helpful|"
    r"confusing)|(?:works?|is|are|suits?|fits?) (?:best|better|easier|me best|me better|clearer)(?: \w+)? (?:for )?me|"
    r"suits? me|(?:it )?helps me (?:if|when|to)|does(?:n['’]t| not) agree with me|my (?:go-to|favou?rite|preferred)|"
    r"for me,? (?:please|pl[sz]|thanks)|(?<=\w )(?<!ja )(?<!würde )(?<!hätte )(?<!möchte )gerne?|ungern|mir wäre|"
    r"wäre (?:es )?mir|stört mich|am liebsten|mir ist (?:\w+ )?wichtig|ich (?:mag|esse|trinke|vertrage|hasse|"
    r"bin allergisch)|j['’]aime(?: mieux| bien)?|je déteste|je (?:ne )?(?:mange|bois|supporte)|je suis (?:allergique|"
    r"végétarien\w*)|me (?:gusta|molesta)n?|odio|(?:yo )?no (?:como|bebo|tolero)|soy (?:alérgic|vegetarian)\w+|gosto|"
    r"mi piace|ik hou van|нравится|люблю",
    "喜欢(?![这那它])|喜歡(?![这那它])|讨厌|討厭|过敏|過敏|我不[吃喝用]|習慣|习惯|好き|嫌い|アレルギー|食べません|"
    "飲みません|苦手|좋아해|싫어|알레르기",
)
"""The words for likes, dislikes and habits."""
_PROHIBITION = re.compile(
    r"^(?:ne\s|n['’]|no (?!worries)(?:(?:me|te|se|l[aeo]s?|nos) )?\w{2,}[ea]s(?!\w)|не \w+(?:й|йте|и|ите|ь|ьте)(?!\w))",
    re.IGNORECASE,
)
"""The opening of a prohibition."""
_NEGATED = SentenceForm(r"nicht|kein(?:e|en|em|er)?|niet|geen")
"""A negation that makes an imperative a prohibition."""
_BARE_PLURAL = re.compile(
    r"(?:^|: )(?:please )?[a-z]+ (?:all |any |only )?(?!(?:the|this|that|these|those|my|"
    r"an?)\b)(?:[a-z]+ )?[a-z]{3,}s\b",
    re.IGNORECASE,
)
"""A request about things of a kind, not about a certain one."""
_ABOUT_A_KIND = re.compile(
    r"^(?:please|bitte) \w+ (?!the|this|that|my|our)\w+(?:s|en|er|e|n) (?:to [a-z ]+|an [\w ]+)?(?:with|as|in|mit|als|"
    r"ohne) |^(?:por favor,? |s['’]il (?:te|vous) plaît,? )?\w+ (?:las|los|les) \w+s (?:con|en|como|avec|comme) |"
    r"^[^请]{2,}请(?:使用|用|署名|采用|按|以)",
    re.IGNORECASE,
)
"""A polite request that says how things of a kind are to be."""
_GENERALIZING_WORD = SentenceForm(
    r"every|(?:in|of|for|at|on|before|after|with|to) each|each time|whenever|unless|without|only|single|exactly|"
    r"instead of|rather than|by default|at most|at least|unchanged"
)
"""The words that make a request a lasting rule."""
_PENDING = SentenceForm(
    r"next steps?|waiting (?:for|on)|awaiting|pending|blocked|open questions?|to-?dos?|still (?:open|missing)|"
    r"(?:still|left) to|follow(?:ing)? up|offene? frage|nächster schritt|steht noch aus|prochaine étape|en attente|"
    r"reste à|siguiente paso|queda pendiente|pendiente|próximo passo|falta|resta da|nog te",
    "下一步|待办|待确认|осталось",
)
"""The signs of something that is still open."""
_PROMISE = SentenceForm(
    r"(?:i|we)(?:['’]ll| will|['’](?:m|re) going to| am going to| are going to| promise)(?! need| never| always)|"
    r"you(?:['’]ll| will) (?:receive|get|hear|have)|will be \w+ed|(?:ich|wir) werden?|werde ich|werden wir|je vais|"
    r"nous allons|voy a|vamos a|vou|vamos|farò|faremo|ik zal|we zullen|сделаю|отправлю|(?:bekommst|kriegst|"
    r"erhältst) du|du (?:bekommst|kriegst|erhältst)|(?:bekommen|erhalten) sie|(?:vous|tu) (?:aur|recevr)(?:ez|as)|"
    r"(?:tendr|recibir)(?:ás|éis|án?)|(?:avr|ricever)(?:ai|ete)|krijgt u|je krijgt|получите|получишь",
    "我会|我将|我們會|我们会|予定です|しておきます|하겠습니다",
)
"""The signs of an assistant's promise."""
_SPEAKER = SentenceForm(
    r"(?:i|we)['’](?:m|re) \w+ing|(?:i am|we are) \w+ing|ich|wir|je|j['’]\w+|nous|(?:te|le|les|os|"
    r"se l[oa]s?) \w{2,}[oe]|eu|io|ik|я|мы",
    "我|私|给你",
)
"""The speaker or the listener, and what one does for the other."""
_LATER = SentenceForm(
    r"tonight|tomorrow|later|soon|once (?:the|it|this|that|all)|as soon as|next week|this (?:afternoon|evening)|(?:by|"
    r"on) (?:mon|tues|wednes|thurs|fri|satur|sun)day|heute (?:abend|nachmittag|noch)|(?<!heute )morgen|später|gleich|"
    r"nachher|sobald|nächste woche|(?:am|bis) (?:montag|dienstag|mittwoch|donnerstag|freitag|samstag|sonntag)|(?:lun|"
    r"mar|mercre|jeu|vendre|same)di|(?:el|para el) (?:lunes|martes|miércoles|jueves|viernes|sábado|domingo)|ce soir|"
    r"demain|plus tard|bientôt|dès que|la semaine prochaine|esta (?:noche|tarde)|mañana|luego|pronto|más tarde|"
    r"en cuanto|amanhã|assim que|stasera|domani|appena|vanavond|straks|zodra|вечером|завтра|как только",
    "今晚|明天|[周週][一二三四五六日]|星期|稍后|等会|之后|等.{1,20}[完后好]|明日|今夜|後で|내일|나중에",
)
"""The times at which something is to be done, or what it waits for."""
_OFFER = SentenceForm(
    r"please|would you|do you|if|(?:once|when|as soon as|after|until) (?:you|i|we|confirmed|approved)(?!\w)|"
    r"your (?:confirmation|choice|approval)|confirm|let me know|bitte|wenn|falls|sobald (?:sie|du|ihr)|s['’]il|"
    r"si (?:vous|tu|l|c)|dès que (?:vous|tu)|lorsque (?:vous|tu)|por favor|si|cuando (?:me|usted|tú|quiera\w*)|"
    r"en cuanto (?:me|usted|tú)|se (?:quiser|desejar|vuole|vuoi)|quando (?:você|vuole|vuoi)|per favore|als (?:u|je)|"
    r"zodra (?:u|je)|пожалуйста|если|когда (?:вы|ты)",
    "请|請|如果|もし|ください|주세요",
    "[?？]",
)
"""The signs of an offer: what an assistant does on the user's condition."""
_TAG_QUESTION = re.compile(
    r" (?:ok(?:ay)?|pl[sz]|please)\?$|[,;:–—] ?(?:ok(?:ay)?|got it|please|understood|deal|alright|ja|klar|verstanden|"
    r"d['’]accord|compris|vale|entendido|de acuerdo|va bene|oké|хорошо)\?$|(?:好吗|好吧|可以吗|行吗|いいですか)[?？]$",
    re.IGNORECASE,
)
"""A question that only asks for agreement."""
_DIALOGUE = re.compile(
    r"(?:yes|yeah|no|ok(?:ay)?|sure|thanks?|thank you|great|perfect|hi|hello|hey|oh|so|and|but|well|hmm|sorry|i|"
    r"i['’]\w+|that|that['’]s|it|it['’]s|this|ja|nein|danke|gut|hallo|also|ich|das|oui|merci|bonjour|je|j|c['’]est|sí|"
    r"gracias|hola|bueno|eso|sim|obrigad[oa]|olá|eu|sì|grazie|ciao|io|dank|hoi|ik|да|спасибо|привет|я)(?!\w)|[好是我]",
    re.IGNORECASE,
)
"""The openings of sentences that depend on what was said before them."""
_NARRATION = re.compile(
    r"(?:just |still |now |back to )?[a-z]{2,}ing\b(?! (?:is|are|must|needs?|should)\b)", re.IGNORECASE
)
"""The opening of a note on what is being done."""
_GERMAN = re.compile(
    r"\b(?:der|die|das|den|dem|ein|eine|und|ich|wir|ist|für|mit|nicht|hab|mir|dir|wird|noch|auf|vom|geht)\b",
    re.IGNORECASE,
)
"""A language that writes all nouns with capitals, so that these are no names."""
_ASKED = SentenceForm(
    r"please|(?:can|could|would|will) (?:you|we|u)|bitte|(?:kannst|könntest|würdest) du|(?:können|könnten|"
    r"würden) (?:sie|wir)|s['’]il (?:te|vous) plaît|(?:peux|pourrais)-tu|(?:pouvez|pourriez)-vous|por favor|puedes|"
    r"podrías|puede usted|podemos|você pode|poderia|puoi|potresti|può|per favore|kun je|kunt u|zou je|можешь|можете|"
    r"пожалуйста",
    "请|請|能不能|帮我|幫我|ください|もらえ|くれま|주세요|해 ?줄",
)
"""The words by which a question asks somebody to do something."""
_CLAUSE_BOUNDARY = re.compile(
    r"[;–—]\s+| - |,\s+(?=(?:and|but|so|or|while|because|und|aber|et|mais|y|pero)\s)|[,;，；：]\s*(?=[^\x00-\x7f])"
)
_MIN_CLAUSE_LENGTH: Final = 40
"""Characters of a clause that is ranked on its own."""
_QUESTION_BOUNDARY = re.compile(r"[,;:–—]\s+| - |\.\.\.\s*|\s+(?=(?:and|but|so|or)\s)|[，；：]\s*|,(?=[^\x00-\x7f])")
_ASKING = re.compile(
    r"(?:(?:and|but|so|or|then|also|please)[,]? )*(?:(?:what|how|why|where|when(?! (?:i|you|we|he|she|it|they)\b)|"
    r"which|who|any|right|ok|okay|is|are|was|were|do|does|did|can|could|would|will|should|shall|may|might|have|has|"
    r"had|(?:is|are|do|does|could|can|wo)n['’]t(?= (?:i|you|we|he|she|it|they|this|that|there|the)\b))(?!\w)|"
    r"(?:kannst|könntest|können|könnten|was|wie|warum|wo|wann|welche|soll|que|peux|pouvez|pourriez|est-ce|quel|"
    r"comment|pourquoi|puedes|podrías|podría|qué|cómo|por qué)(?!\w)|¿)|[^,，]*[吗呢么][?？]$|[^,，]*(?:什么|怎么|"
    r"哪)[^,，]*[?？]$",
    re.IGNORECASE,
)
"""The opening of a question at the end of a sentence."""
_HELP = re.compile(
    r"(?:(?:and|but|so|then|also|please)[,]? )*(?:(?:can|could|would|will) (?:you|we)|any (?:ideas?|tips|advice|"
    r"suggestions?|thoughts)|(?:should|could|can|do|must) (?:i|we)|do you think|is (?:that|this|it) (?:enough|"
    r"ok(?:ay)?|fine)|(?:what|which|how|where|when) [^,.?]{0,40}?\b(?:could|should|can|would|do|is|are)(?!\w)|"
    r"(?:kannst|könntest) du|(?:können|könnten) sie|(?:was|wie|welche\w*|wo) (?:soll|kann|muss|könnte)|(?:peux|"
    r"pourrais)-tu|(?:pouvez|pourriez)-vous|que (?:puis|dois)|¿?(?:puedes|podrías|qué (?:puedo|debo|me))(?!\w))|"
    r"[^,，]*(?:可以|怎么|什么|能)",
    re.IGNORECASE,
)
"""The opening of a question that asks for help, not how the listener is. What stands before it are its terms."""
_MIN_WORDS: Final = 3
_WISH = re.compile(
    r"(?:\w+[,.!]? ){0,2}?(?:i|we)(?:['’]d| would|['’]m| am)? (?:still |also |just |really )?(?:need|want|like|love|"
    r"hope|wish|have|looking|trying|hoping) (?:you )?to\b",
    re.IGNORECASE,
)
"""The opening of a request for something now."""
_DOUBT = re.compile(r"(?:right|correct|true|no|yes|or|or not|is it|isn['’]t it|don['’]t you think)\?$", re.IGNORECASE)
"""A question at the end of a sentence that only asks whether it is so."""
_ASKED_FOR = re.compile(
    r"(?:(?:hi|hey|hello|ok|okay|so|and|also|but|then|now|please|great|first|\w+)[,.:!]? ){0,3}?(?:can|could|would|"
    r"will) (?:you|we|u) (?:please |kindly |also |just |maybe |then )*(?=[a-z])"
)
"""The words by which an English question asks for something to be done."""
_INQUIRY = re.compile(r"(?:clarify|explain|tell|check|confirm|look|show|see|describe|help|verify|double|let me know)\b")
"""The verbs of a request for information."""
_EMPHASIZED = re.compile(r"\b(?:MUST|SHOULD|SHALL|NEVER|ALWAYS|DO NOT|DON'T)\b")
"""Words in capitals that make a sentence an order."""
_QUOTED_ORDER = re.compile(r"(?<=\w )[\"“][^\"“”]{20,}[\"”]")
"""What somebody else says, or a text to be shown."""
_NEGATIVE_ORDER = re.compile(r"(?:please )?don['’]?t\b", re.IGNORECASE)
_ONLY = re.compile(r"(?:^|: )[Oo]nly (?:(?:use|with|in|for|from|on|the) )*[A-Z]\w")
"""An order that allows one thing."""
_EMPHATIC = re.compile(
    r"(?:(?:please|and|but|so|om\w*g|ffs|argh|damn|dude|again|seriously|btw)[,]? )*(?:never|always|only|do not|"
    r"don['’]t|no \w+s\b|stop|use|make sure|must|nobody|hands off|you must)|[^\x00-\x7f]|(?:nie|niemals|immer|bitte|"
    r"kein|nicht|ne |n['’]|jamais|toujours|nunca|siempre|no \w+es\b|sempre|mai |nooit)",
    re.IGNORECASE,
)
"""The opening of an order that stays one with an exclamation mark."""
_QUESTION = re.compile(
    r"(?:(?:and|but|so|ok|okay|hm+|question)[,:]? +)?(?:(?:how|why|what|where|which|who) +(?:(?!(?:i|we|"
    r"you) )\w+ +)?(?:do|does|did|is|are|was|were|can|could|should|would|will|has|have|happens|about)(?!\w)|(?:what|"
    r"how)['’]?s |(?:or |and |but |so )?(?:would|could|should|shall|can|do|does|did|is|are|was|were) (?:i|we|it|there|"
    r"they|he|she|this|that|the)(?!\w))",
    re.IGNORECASE,
)
"""The opening of a question, also of one without a question mark."""
_PRAISE = re.compile(
    r"(?:thanks?|thank you|thx|great|perfect|awesome|excellent|nice|wow|cool|good (?:job|work|catch|morning)|"
    r"well done|hi|hello|hey|danke|super|prima|hallo|merci|parfait|bonjour|gracias|perfecto|genial|hola|obrigad[oa]|"
    r"grazie|perfetto|ciao|bedankt|hoi|спасибо|привет)(?!\w)|谢谢|太好了|ありがと|감사",
    re.IGNORECASE,
)
"""The opening of a greeting, of thanks or of praise."""
_AGREEMENT = re.compile(
    r"(?:(?:oh|yeah|yes|yep|well|so|and|hey|aw+)[,!]? )?(?:(?:i |we )?(?:totally |completely |absolutely |definitely |"
    r"100% )?agree|absolutely|definitely|exactly|of course|sure|no (?:worries|problem)|congrats|congratulations|"
    r"good luck|take care|keep (?:it up|going|up the|being)|(?:you['’]re|you are) (?:welcome|so|amazing|awesome|right)|"
    r"glad|happy|"
    r"sounds|that['’]?s|that (?:is|sounds|looks|must)|it['’]s (?:so|great|nice|good)|what an?|how|same here|me too|"
    r"noted|agreed|makes sense|fair (?:point|enough)|i (?:hear you|see)|acknowledged|understood|continuing|got it|"
    r"done|ok(?:ay)?|haha|aw+|see you|take it easy|give it a (?:shot|try|go)|talk (?:to you )?soon|bye|let me know|"
    r"can['’]t wait|have (?:a|fun)|enjoy|"
    r"check out|take a look)(?!\w)",
    re.IGNORECASE,
)
"""The opening of a sentence that only agrees, encourages or says goodbye."""
_OBLIGATION = SentenceForm(
    f"{_PROHIBITIONS}|"
    r"must(?:n['’]t)?|may not|shall|forbidden|prohibited|not allowed|off[- ]limits|mandatory|you should|ha(?:ve|s) to|"
    r"muss|müssen|darf|dürfen|verboten|keinesfalls|doi(?:t|vent)|il (?:ne )?faut|interdit|debe(?:n|mos)?|deve(?:m|"
    r"mos)?|prohibid\w*|proibid\w*|devono|vietat\w*|moet(?:en)?|mag niet|mogen niet|нельзя|долж\w+|запрещ\w*",
    f"{_EAST_ASIAN_PROHIBITIONS}|不要|不得|必须|必須|禁止|只能|不可|务必|"
    "ないで|べき|必ず|決して|[てで]ください|하지 ?마|지 ?마|반드시|금지|절대",
)
"""The words that oblige or forbid, in any place of a sentence."""
_SPEAKER_WORDS: Final = (
    r"i|i['’]\w+|im|me|my|we|we['’]\w+|us|our|ich|mir|mich|mein\w*|wir|uns|unser\w*|je|j['’]\w*|moi|mon|ma|mes|nous|"
    r"notre|yo|mi|mis|nos|nosotros|prefiero|quiero|tengo|soy|no como|eu|io|noi|ik|wij|я|мы|мне|нам"
)
_FIRST_PERSON = SentenceForm(_SPEAKER_WORDS, "我|私|僕|저|나는|우리")
_ADDRESS = SentenceForm(
    f"{_SPEAKER_WORDS}|" r"you|you['’]\w+|your|please|let['’]?s|du|dich|dein\w*|bitte|vous|tu|tú|usted|você|jij|вы|ты",
    "我|你|您|私|僕|저|나는|우리",
)
"""The words for the speaker and the listener."""
_ORDER_OPENINGS_TEXT: Final = (
    "never always do please ensure look find review try proceed select investigate implement continue go compare "
    "refactor rewrite search summarize"
)
_ORDER_OPENINGS: Final = frozenset(_ORDER_OPENINGS_TEXT.split())
"""Further openings of an order in English."""
_MODAL_VERB = SentenceForm(
    # English
    r"please|(?:would|['’]d) like|let['’]?s(?! (?:see|keep|hope|face|make))|(?:i|we) (?:need|want)(?! to be)|go ahead|"
    r"proceed|ensure|remember to|i['’]ll (?:go with|take)|"
    # German, French, Spanish and Portuguese, Italian and Dutch, Russian
    r"nichts?|kein(?:e|en|em|er)?|musst|darfst|soll(?:te|ten|en|st)?|bitte|statt(?:dessen)?|ohne|"
    r"doi(?:t|s|vent)|devez|devons|ne\b.{1,40}?\bpas|il faut|au (?:plus|moins|lieu)|plutôt|sans|veuillez|"
    r"s['’]il (?:te|vous) plaît|debe(?:n|s|mos)?|solo|en (?:lugar|vez)|em vez|não|sin|sem|por favor|"
    r"devi|non|invece|per favore|geen|in plaats van|graag|не|вместо|пожалуйста",
    "不能|请|ないで|ください|しない|해야|하세요|해 ?주세요|대신",
)
"""Other words of a request; those of a lasting rule are in `_LASTING_WORDS`."""
_IMPERATIVES_TEXT: Final = (
    "use run write add remove delete fix report send ask tell check include leave make put set show name call "
    "create update change replace rename move install test verify read open close start begin end follow give "
    "take treat assume answer reply respond return format print log store save commit push merge revert deploy "
    "escalate notify confirm wait skip ignore focus limit exclude prioritize document list load train convert "
    "download copy build generate draw design translate provide submit clean consider choose pick express state "
    "mention describe apply charge refund order pay sort filter export import summarize speak restrict explain "
    "keep stop no not sign avoid switch cancel book"
)
_IMPERATIVES: Final = frozenset(_IMPERATIVES_TEXT.split())
"""The verbs that often begin a request in English."""
_FOREIGN_IMPERATIVES_TEXT: Final = (
    "nimm nutze verwende benutze gib schreib schreibe mach mache lass lösche ändere sende schick schicke frag "
    "frage prüfe starte führe lies zeig zeige nenne füge entferne behalte antworte formatiere stelle setze "
    "unterschreibe kein keine keinen achte utilise utilisez écris écrivez fais faites envoie envoyez mets mettez "
    "garde gardez réponds répondez vérifie vérifiez demande demandez supprime supprimez ajoute ajoutez laisse "
    "laissez lance lancez signe signez prends prenez donne usa usad utiliza escribe haz envía pon mantén responde "
    "verifica pregunta borra añade cambia deja firma toma usem escreva envie mantenha responda scrivi invia metti "
    "mantieni rispondi controlla gebruik schrijf stuur zet используй используйте напиши отправь добавь удали "
    "проверь отвечай оставь"
)
_FOREIGN_IMPERATIVES: Final = frozenset(_FOREIGN_IMPERATIVES_TEXT.split())
"""The same in German, French, Spanish, Portuguese, Italian, Dutch and Russian."""
_ALL_IMPERATIVES: Final = _IMPERATIVES | _FOREIGN_IMPERATIVES
_CHANGE = SentenceForm(
    _RETRACTIONS + r"|instead|no longer|(?:not|n['’]t)\b[^,.]* any ?more|from now on|going forward|changed?|moved|"
    r"raised|lowered|extended|switch(?:ed)?|swapped|took over|ended up|(?:went|gone|is|are) (?:up|down) to|increased|"
    r"(?:may|can|(?:fine|ok(?:ay)?|allowed) to)\b[^.]* again|reduced|dropped|grown|reached|bumped|postponed|"
    r"rescheduled|pushed (?:back|to)|replaced|after all|updated?|correction|actually|scratch that|rather|verschoben|"
    r"erhöht|gesenkt|repouss\w+|report\w+ au|aplaz\w+|aument\w+ a|stattdessen|statt|ab (?:jetzt|sofort)|nicht mehr|"
    r"doch|korrektur|geändert|désormais|dorénavant|plutôt|au lieu|à la place|finalement|en fait|en (?:lugar|vez)|"
    r"em vez|a partir de (?:ahora|agora)|ya no|mejor|corrección|en realidad|na verdade|invece|d['’]ora in poi|anzi|"
    r"voortaan|in plaats van|toch|вместо|отныне|лучше|"
    # At the beginning these words only go on: "Now, I would like ..."
    r"(?<=\w )(?:(?<!right )now|nun|jetzt|maintenant|ahora|agora|adesso|nu|теперь)",
    f"{_EAST_ASIAN_RETRACTIONS}|"
    r"改为|改成|改用|换成|不再|而不是|更正|其实|从现在起|现在|推迟|延期|今後|これから|ではなく|代わりに|訂正|変更|"
    r"앞으로|대신|정정|^(?:不[对是]?|いいえ|아니요?)",
    r"^(?:no|wait|sorry|change of plans?|nein|moment|non|нет)\b[,.:;–—]",
)
_CORRECTS = SentenceForm(
    _RETRACTIONS + r"|correction|instead|stattdessen|korrektur|au lieu|"
    r"plutôt|à la place|en lugar|en vez|mejor|corrección|em vez|correção|invece|anzi|in plaats|вместо|исправление",
    f"{_EAST_ASIAN_RETRACTIONS}|"
    r"更正|改为|改成|改用|换成|而不是|訂正|代わりに|ではなく|정정|대신|^(?:不对|不是|いいえ|아니)",
    r"^(?:no|wait|actually|change of plans?|nein|doch|moment|non|en fait|en realidad|нет)\b[,.:;–—]",
)
"""The signs of a correction."""
_FIGURE = re.compile(r"[$€£¥]\s?\d[\d.,]*|\d{4}-\d\d-\d\d|\d[\d.,:]*\s?%?")
_VALUE_SIGN = re.compile(r"[$€£¥%:]|\d[.,]\d|\d{4}-\d\d-\d\d")
_UNIT = re.compile(
    r"\s?(?:(?:euros?|eur|usd|dollars?|dollari|francs?|pounds?|percent|prozent|pour ?cent|por ?ciento|ms|"
    r"mil(?:l?i)?se[ckg]\w*|se[ckg]\w*|min\w*|hours?|stunden?|heures?|horas?|ore|uur|days?|tagen?|tage|jours?|d[ií]as|"
    r"giorni|dagen|weeks?|wochen?|semaines?|semanas|months?|monate?|mois|mes(?:es)?|words?|wörter|mots|palabras|"
    r"lines?|zeilen|lignes|l[ií]neas|sentences?|sätze|phrases|frases|tokens?|retries|[kmgt]i?b|people|personen|руб\w*|"
    r"дн\w*|час\w*)(?!\w)|欧元|美元|[元万円원]|毫秒|秒|分钟|分|小时|時間|시간|天|日|일|行|字|句|人|명)",
    re.IGNORECASE,
)
_BOUND = re.compile(
    r"(?<!\w)(?:at (?:most|least)|up to|within|exceed|(?:no|not) (?:more|less|later|fewer) than|cap|limit|budget|"
    r"deadline|maximum|minimum|höchstens|mindestens|maximal|au (?:plus|moins)|máximo|menos|al massimo|almeno|hoogstens|"
    r"minstens|не более|не менее)(?: (?:is|of|to|at|von|de|der|las|les))*\s*$|"
    "(?:不得?超过|最多|最少|至少|上限[是为]?|최대|最大)\\s*$",
    re.IGNORECASE,
)
"""The words before a figure that make it a limit."""
_MAX_DISTANCE: Final = 40
_NEGATION = SentenceForm(
    r"never|not|no|don['’]t|doesn['’]t|mustn['’]t|can['’]t|cannot|without|avoid|forbidden|prohibited|nie|niemals|"
    r"nicht|keine?[mnrs]?|ohne|verboten|jamais|pas|sans|interdit|nunca|no|sin|prohibid\w*|não|sem|non|mai|senza|"
    r"vietat\w*|nooit|niet|geen|никогда|не|нельзя",
    "不|禁止|勿|ない|で?すな|금지|마세요|지 ?마",
)
_PARTICULARS = re.compile(
    r"[$€£¥]\s?\d|\d\s?[%€$]|\d{2,}|\d\.\d|https?://|\w_|\b(?:Herrn?|Frau) [A-ZÄÖÜ]|\b[A-Z]*[a-z]+[A-Z]|"
    rf"[{EAST_ASIA}] ?[A-Z][A-Za-z]{{2,}}|是[{EAST_ASIA}]{{2,4}}[。.]?$|"
    r"\b[A-Z]{2}[\w-]*\d|\b\w+[-_/.]\w*\d|\b\w[\w-]*\.[a-z]{3,}\b|[\"“`«][^\"”`»\n]{2,60}[\"”`»]"
)
_PARTICULARS_SIGN = re.compile(rf"[\d_\"“`«{EAST_ASIA}]|[a-z][A-Z]|://|\.[a-z]|Herr|Frau")
"""Each text with particulars has one of these, and is found ten times as fast."""
_CAPITALIZED = re.compile(r"(?<=[a-z,;:] )(?![A-Z]{2,4}\b)[A-Z][\w-]+")
"""A name in most languages."""
_VOCATIVE = re.compile(
    r", (?-i:[A-Z])[a-z]+(?=[.!?… ]*$)|^(?:oh|yeah|yep|yes|hey|hi|hello|thanks|thank you|wow|whoa|gosh|aw+|sure|no|"
    r"ok(?:ay)?|right|true|congrats|congratulations|well|nice|great|cool|awesome|sorry|"
    r"exactly|absolutely)[,!]? (?-i:[A-Z])[a-z]+(?=[,.!])",
    re.IGNORECASE,
)
"""The name of the listener."""
_NAMES = re.compile(r"(?<!das)(?<!es) (?:ist|sind|heißt|heißen|lautet) (?:[A-ZÄÖÜ][\w-]+[ .!]?){1,3}$")
"""A German sentence that ends in a name."""
_COPULA = re.compile(
    r"\s(?:is|are|was|will be|ist|sind|heißt|lautet|est|sont|es|son|é|são|è|sono|—|=)\s|是|は|은 |는 ",
    re.IGNORECASE,
)
_NAME_OR_FIGURE = re.compile(r"[^\W_a-z]")
_LINK = re.compile(r"\b(?:of|in|to|by|at|with|from|for|on|as|is|are|was|were|plays|speaks|:)\s", re.IGNORECASE)
"""The words before the value of a fact."""
_HEADING = re.compile(r": |：")
_VALUE = re.compile(r"\d|[\"“`«]|(?:^|\s)[A-Z]|^[^\W_a-z]{1,12}[。.]?$")
"""The signs of a value after "is": a figure, a name, a quotation."""
_VALUE_WORDS: Final = 8
# It begins with the sign, which is found much faster than a condition on what stands before a place.
_SENTENCE_END = re.compile(
    r"[.!?。！？](?:(?<=[.!?])[\"”')\]]?\s+(?=[^\W\d_]|[\"“(¿¡])|(?<=[。！？])\s*(?=\S))",
)
_ABBREVIATION = re.compile(
    r"(?<!\w)(?:[A-Za-z]|Ms|Mrs?|Dr|Prof|St|Sra?|Sras|Dra|Mme|Mlle|Hr|Fr|Nr|No|vs|approx|bzw|ca|etc|bspw|usw|vgl|núm|"
    r"(?:am|den|dem|der|vom|zum|bis|im|ab) \d{1,2})\.$",
    re.IGNORECASE,
)
"""A word whose full stop ends no sentence."""
_MAX_ABBREVIATION_LENGTH: Final = 8
"""Characters, with the full stop."""
_DEPENDENT = re.compile(
    r"(?:(?:it|this|that|these|those|they|he|she|so|but|and|or|then|otherwise|also|instead|there|except|unless|er|sie|"
    r"es|das(?! (?-i:[A-ZÄÖÜ]))|dies\w*|aber|und|oder|sonst|dann|also|außer|dort|il (?!faut|ne faut)|elle|ça|cela|ce|"
    r"c['’]est|mais|et|ou|sinon|alors|eso|esto|ese|este|pero|y|o|si no|entonces|isso|mas|e|ma|maar|en|но|и|это|(?:no|"
    r"yes|nein|ja|non|oui|sí|sim|sì|нет|да)(?=[,.;:–—!]))(?!\w)|[^.!?]{0,100}(?<!\w)(?:(?<!got )it|them|those|these|"
    r"that|this|one|ones|ihn|davon|damit|darauf|dafür|dort|celui\w*|celles?|ceux|ello|eso|él)(?!\w))|"
    "[它这那否但]|[^。！？]{0,40}它",
    re.IGNORECASE,
)
"""A sentence that cannot be understood without the one before it."""
BULLET = re.compile(r"^(?:(?:[-*•+–]|\d{1,5}[.)])\s+|[・·]\s*|\d{1,3}、\s*)")
_ASSENTS: Final = (
    r"absolutely|agreed|certainly|definitely|done|exactly|got it|makes sense|noted|obviously|of course|ok(?:ay)?|right|"
    r"seriously|sure|true|understood"
)
_ASSENT = re.compile(rf"(?:{_ASSENTS})(?:\W+|$)", re.IGNORECASE)
"""The words by which one agrees, in front of what is to be done."""
_OPENING_WORD = re.compile(
    r"(?:^|: )[^\w:]*(?:(?:from now on|going forward|in future|ab (?:jetzt|sofort)|désormais|à partir de maintenant|"
    rf"a partir de ahora|{_ASSENTS}|please|yes|and|also|then|so|now|but|first|next|only|just|bitte|por favor|"
    r"per favore|s['’]il (?:te|vous) plaît)\W+){0,3}([^\W_]+)(?! (?:is|are|was|were|can|will|has|have)\b)",
    re.IGNORECASE,
)


# -- English rules -----------------------------------------------------------------------------------------------------

_CONJECTURES: Final = (
    r"\b(?:es|das) muss wohl\b|\bmuss (?:wohl )?ein \w+ (?:gewesen )?sein\b|\b(?:ça|cela) doit être (?:un bug|"
    r"une erreur|à cause)|\bdebe de\b|(?:^|[,;] |\b(?:guess|probably) )must(?:['’]ve)? [^,;]*|must['’]ve\b[^,;]*|"
    r"\b(?:and|but) must (?:have|feel|love|know|think|be (?:so|such|really|very|quite|pretty|hard|tough|nice|great|"
    r"fun))\b|must have (?!(?:an?|the|at|no|one|two|three|its|their|your|all|both|only|every|each|exactly)\b|"
    r"\d)(?!been \w+ed by)[^,;]*|must have (?:a lot|lots)\b|must still be\b|\ba must\b|must [^,.]*\bso (?:much|many)\b|"
    r"\b(?:it|this|that|there|these|those) must be (?:some\w*|because|due to|why|how|\w+(?:ing|ful|ous|ive)|(?:an? |"
    r"the )?(?:\w+ )?(?:bug|mistake|error|typo|race|reason|cause|problem|issue))\b|\bmust (?:be|feel|seem|look|"
    r"sound) (?:so|such|really|very|quite|pretty|super|tough|hard|rough|fun|nice|great|good|amazing|awesome|thrilled|"
    r"proud|happy|excited|tired|lovely|incredible)\b|\b(?:it|this|that|there|you|he|she|they|\w+ing) must (?:feel|love|"
    r"miss|enjoy|mean|know|think|seem|look|sound|take)\b|\bi must (?:say|admit|confess)\b|\bhow \w+ (?:it|that|this|"
    r"you|he|she|they) must\b|\bcan only (?:imagine|hope|"
    r"guess|assume)\b|\bi (?:really |just )?think [^,]*\bshould\b"
)
"""What a speaker guesses or finds: "it must have been great", "must be so cool", "I think they should"."""
_REPORTS: Final = (
    r"\b(?:usually|mostly|probably) only\b|"
    r"\b(?:i|we|you|he|she|it|they|that|this|there|who|which|have|has|had|is|are|was|were|be|been|am)(?:['’](?:s|m|re|"
    r"ve|d))? (?:(?!must|should|shall|can|may|will)\w+ly |just |also |still |will )?(?:always|never|only|"
    r"at least)(?: (?!(?:want|need|prefer|accept|use|do|run|ask|write|commit|push|deploy)\b)|[.!,?]|$)|\b(?:always|"
    r"never) (?:been|had|seen|thought|knew|known|heard|met|felt|got|gotten|went|gone|did|done|made|saw|an?|the|here|"
    r"there|good|great|nice|so|fun|my|our|your|in|at|on|with|for|to|something|someone|happy|glad|enough|too|know|love|"
    r"loved|have|(?!exceed|proceed|embed|feed|need|seed|speed)\w+ed|\w+ing|\w+[^su\W]s)\b|\b(?:as|like|than|ever|now|"
    r"if|not|almost|nearly|to) (?:always|never|ever)\b|\b(?:not|if|the|my|our|your|an?|are|is|was|were|than) only\b|"
    r"\bonly (?:just|because|thing|time|about)\b|\b(?:he|she|they|who)\b[^.]{1,60} and (?:always|never)\b"
)
"""What somebody says of how things are: "it always works", "he never misses"."""
_ENCOURAGEMENT: Final = (
    r"(?<!\bi )(?<!\bwe )(?<!\breally )(?<!\balso )(?<!\bdefinitely )\b(?:don['’]?t|do not|never) (?:ever )?(?:worry|"
    r"give up|quit|forget|"
    r"hesitate|be|lose|miss|feel|get|let|stop|think|know|need|want|remember|have|see|mention it|you|even|really|like|"
    r"care|believe|understand|recall)\b|\b(?:don['’]?t|do not) (?:mind\b|[^,.]*\byourself\b)|\bkeep (?:it (?:up|going|"
    r"real)|up|at|on|going|in (?:touch|mind)|me|pushing|us|\w+ing|calm|an eye)\b|\bkeep [^,.]{1,30} (?:going|motivated|"
    r"up)\b|\bkeep (?:your |the |that |those |her |his |their |our |them|him)(?:dreams?|memor\w+|spirits?|passions?|"
    r"love|friends|family|loved ones|hope)? ?(?:close|alive)\b(?! (?:to|between|until)\b)|\bnever (?:look back(?=\W*$)|"
    r"settle for (?:anything )?(?:less|second)\b|stop (?:believing|dreaming|learning|growing)\b)|\balways remember "
    r"(?:that )?you(?: are|['’]re)? (?:loved|enough|strong|amazing|not alone|matter|can do)\b|"
    r"\blet['’]?s keep (?:each|\w+ing|it|in|up|on|us)\b|\b(?:make|be) sure (?:you |to |"
    r"that you )*(?:take (?:care|some|time|it)|rest|enjoy|have fun)\b"
)
"""What a friend says: "don't give up", "keep it up"."""
_ADVICE: Final = (
    r"\b(?:make sure|always|never|must|should)\b[^.;!?]*?(?:\byour (?:own )?(?:heart|gut|instincts?|dreams?|passions?|"
    r"personality|lifestyle|friend\w*|loved ones|health|happiness|body|skin|soul|comfort zone|well-?being|confidence|"
    r"relationships?|journey|life|hobbies)(?![ -](?!(?:and|or|in|with|when|while|by|for|first|too|as|every|right|to|at|"
    r"on|before|after)\b)\w)|\b(?:align|fit|match|suit)\w* (?:with )?your (?:own )?(?:values|goals|"
    r"needs|interests)\b|\b(?:be|to|with|on|in|of|for|after) yourself\b|\byou (?:really |truly )?(?:enjoy|love|"
    r"deserve)\b)|"
    r"\b(?:make sure|always|never|must|should)(?: (?:to|you|always|never))* (?:(?:wear|bring|pack|take)(?: (?:a|an|"
    r"some|your|the|enough|plenty of|lots of|good|warm|comfortable|comfy))* (?:jacket|coat|sweater|layers|hat|umbrella|"
    r"sunscreen|water|snacks?|food|shoes|boots|clothes|camera|towel|blanket)s?\b|(?:eat|drink|sleep|rest|breathe|"
    r"stretch|smile|exercise|meditate|hydrate)(?= ?(?:[.,;!?]|$|well\b|enough\b|more\b|healthy\b|plenty\b|deeply\b|"
    r"regularly\b|water\b|up\b)))[^,.;]*"
)
"""An order on the listener's own life or body, which is no assistant's: "follow your heart", "make sure to bring a
jacket". "Your health check" is no such life, and tests exercise branches."""
_EXPECTATIONS: Final = (
    r"\baccording to\b.*|\bi(?: have|['’]ve)? (?:read|heard)\b.*|"
    r"\b(?:went|gone|crept|grew|came|got|jumped|is|are|now) up to\b|^(?:- )?no \w+s (?:to (?:apply|run|show|commit|"
    r"report|do|see|fix|add|be)|found|detected|were|are|yet)\b|\bi['’]d (?:rather|prefer) [^.]*\b(?:then |"
    r"and )i['’]ll\b.*|\b(?:nobody|no one) (?:was|is(?! to\b)|has|had|knows?|cares|likes|wants|believes|understands|"
    r"thinks|seems|really)\b|\b(?:i|we) (?:have )?(?:learn(?:ed|t)|remember|reali[sz]ed) (?:is |was )?that\b.*|"
    r"\b(?:linter|compiler|error|log|warning|message|output|traceback) (?:\w+ )?(?:says?|said|prints?|printed|reads?|"
    r"shows?|complains?|is)\b.*|(?:^|[,:;] )no (?:worries|thanks|problems?|issues|questions|doubts|surprises|changes|"
    r"errors|results|regrets|words|plans|reasons|excuses|guarantees|hard feelings)\b|"
    r"\bwant (?!you )(?:\w+ ){1,2}to (?!be\b|go (?:out|to|in|on|via)\b)|\blike no one\b|\bshould be everyone\b|"
    r"^\W*(?:please )?(?:add|write|create|implement|fix|check|verify|test|run)\b[^;]*\bshould\b|\b(?:i|we|you|he|she|"
    r"they|it|that|this|there|these|those|people|every\w+|things|who|what|which|how|when|where|why) (?:really |"
    r"definitely |probably |both |all |just )?(?:should|shall|needs?(?: to)?|ha(?:s|ve) to)(?! (?:not|never|always|"
    r"only)\b)(?:n['’]t (?:have|be|i|we|you|it))?|\bshould(?:n['’]t)? (?:now )?(?:have|work|pass|succeed|help|do|"
    r"suffice|be (?:fine|ok|okay|good|able|enough|ready|working|here|fun|there|great|easy|interesting|proud|eligible|"
    r"better|done|correct))\b|\bneeds? to (?:talk|chat|know|happen|relax|go)\b|\b(?:reason|why|how|what|which|whether|"
    r"where) [^,.;()]{1,60}\b(?:should|forbidden)\b|^consider\b.*|\bshould be (?:in|on) (?:my|file)\b|^if (?:that|this|"
    r"it|so|not|possible|needed|you (?:need (?:anything|something|any|help|me|us|someone|more|to talk|it|that)|have|"
    r"want|can|could|don|ever|like))\b[^,]*|^if (?:you['’]re (?:into|ever (?:in|around|near) (?:town|"
    r"the area|here)|free (?:this|next|on|later|tonight|tomorrow)|around|interested,|curious,|interested in (?:joining|"
    r"trying|seeing|learning)|looking for (?:something|inspiration|an? (?:good|great|fun)))|[^,]* (?:is|are) your "
    r"thing)(?!\w).*|^(?:perhaps|maybe) (?:i|we|he|she|they|it)\b.*|^(?:no|actually|wait|sorry|oh|"
    r"oops)[,.!:]? (?=(?:i|i['’]\w+|we['’]\w+|thanks?|that['’]?s?|it['’]s (?:just|been|ok|fine|great)|this|you|there|"
    r"not|problem|worries|way|he|she|they|my|let)\b)"
)
"""Pronouns before "should", what is only expected, and openings that only answer."""
_CONJECTURE = re.compile(_CONJECTURES)
_CONJECTURE_WORDS: Final = ("must", "only", "think", "muss", "doit", "debe")
"""Each text with a conjecture has one of these."""
_REPORT = re.compile(_REPORTS)
_REPORTING_WORDS: Final = (
    *("always", "never", "only", "at least", "ever", "toujours", "jamais", "doit", "immer ", "nie", "nur", "muss"),
    *("kein", "now and ", "siempre", "nunca", "jamás", "必", "だけ", "こと"),
)
"""Each text with a report has one of these."""
_TALK = re.compile("|".join((_CONJECTURES, _ENCOURAGEMENT, _ADVICE, _EXPECTATIONS)))
"""The words of talk that resemble a rule but guess, encourage, advise or expect."""
_PAST: Final = re.compile(
    r"\b(?:yesterday|last (?:\w+)|ago|the other (?:day|week)|recently|today i|this (?:morning|week|past)|back(?: in|"
    r" then|$|\.| with))\b"
)
"""The times at which something was done."""
_CLAUSE_START: Final = (
    r"(?:^|[,;:.(–—] |- |\b(?:please|pl[sz]|strictly|and|but|or|so|then|also|just|ok|okay|btw|again|first|instead|now|"
    rf"well|yes|no|hi|hey|future) |^(?:{_ASSENTS}),? )(?:please )?"
)
_VERBS: Final = (
    r"(?:use|run|write|add|send|ask|tell|check|print|make|put|set|show|call|create|update|wait|skip|stop|report|return|"
    r"load|never|always|only|don['’]?t|do not|you (?:must|should|may|can)|i (?:want|would|need|prefer)|i['’]d)\b"
)
_ANSWERING: Final = (
    r"(?:include|use|show|give|keep|add|format|answer|reply|respond|provide|cite|list|explain|write|put|suggest|"
    r"recommend|offer|avoid|stick|round|convert|translate|name|mention|spell|quote|attach|start|end|sign|state|express|"
    r"present)"
)
_ASKING_VERBS: Final = (
    r"(?:ask|talk|speak|mention|write|request|discuss|want|need|answer|reply|give|show|explain|recommend|suggest|use|"
    r"send|report|present|describe|summari[sz]e|plan|review|commit)"
)
_REPEALED: Final = r"(?:rules?|ban|freeze|limit|restriction|requirement|convention|constraint)"
_ENGLISH_RULES: Final = (
    # What is never or always to be done.
    rf"{_CLAUSE_START}(?:never|always|avoid) \w",
    rf"{_CLAUSE_START}(?:don['’]?t|do not) (?:ever )?\w",
    rf"{_CLAUSE_START}make sure (?:to|that|you|it|the|all|every|no)\b",
    r"^(?:and |but |please |also )?no (?:[a-z]+ ){0,2}\w+(?:s|ing) (?:in|on|for|from|at|with|to|without|please|before|"
    r"after|of|outside|until)\b",
    r"(?:^|[,:] )(?:strictly |absolutely |please |and |but )*no (?:[a-z]+ )?[a-z-]+(?:s|ing)(?: (?:pl[sz]|please|ever|"
    r"at all|allowed))?[.!]?$|^[\w.+#-]+(?: [\w.+#-]+)? only(?:[,.!]|$)|^\w{3,}s,? not \w{3,}s[.!]?$",
    r"(?:^|: )(?:please )?(?:report|write|format|express|put|name|sign|round|display|state|cite|prefix|quote|label|"
    r"measure|convert) (?:all|any|every) [a-z ]+ (?:in|with|as|by|to|on|before|after)\b|\buser wants (?:[^t\s]|"
    r"t[^o\s])",
    r"^(?:[a-z-]+ ){0,3}(?:rules|guidelines|conventions|style|preferences)(?: [a-z-]+){0,3}: \S",
    r"\bkeep it (?:short|brief|simple|concise|formal|casual|minimal|small|clean|polite|plain|neutral|professional)\b",
    r"\b(?:answers?|replies|responses?|output|code|comments?|names|dates|prices|units|numbers|commits|"
    r"titles)\b[^.,]* (?:please|pl[sz])[.!]?$",
    r"\bno need (?:for|to)\b|\b(?:must|shall|should|may|wants?|needs?) (?:\w+ )?(?:always|never|only)\b|"
    r"\byou can only\b",
    r"\b(?:want|need|remember|expect|ask|told) (?:\w+ )?to (?:always|never|only)\b|, (?:then )?\w+ only\b",
    r"^(?:please |no, )?(?:use|take|stick with) [^.,]{1,40} (?:for|as) (?:the|all|every|our|my|any|\w+s)\b",
    r"^(?:please )?(?:use|take|put|write|send|run|call|name|show|give|answer)\b[^.]*, not \w",
    # Obligations and prohibitions.
    r"\bmust(?:n['’]t| not)?\b|\bshall (?:not|be|have|use|only)\b|\bshould(?:n['’]t)?\b|\bneeds? to be\b|\bhas to \w",
    r"\bmay not\b|\bnot allowed\b|\bforbidden\b|\bprohibited\b|\boff[- ]limits\b|\bmandatory\b|\binsist\b",
    r"\b(?:nobody|no one) (?:\w+s|may|should|can|must|is to)\b|\bhands off\b|\bstay away from\b",
    r"\bunder no circumstances\b|\bwhatever you do\b|\bnot to be \w|\bwithout asking\b|\bstays? (?:as|where it|"
    r"the way)\b",
    r"\bleave [^,]{1,40}\b(?:alone|as|unchanged)\b|\bkeep (?:it|that|this|them|the \w+) (?:below|under|off|out)\b",
    rf"{_CLAUSE_START}(?:keep|leave|limit|restrict|stick to|stay (?:with|in|below|under)) (?:all|the|every|them|your|"
    rf"my|our|"
    r"both|answers?|replies|\w+s|within|below|under|in)\b",
    # What somebody prefers, wants or has decided.
    r"\b(?:i|we|user|customer|client|['’]d|would|strongly|slightly) (?:\w+ )?prefer(?:s|red|e)?\b|(?:^\W*|"
    r"[,–—] ?)prefer|\bpreferabl[ye]\b|\bis preferred\b|\bmy preference\b|\b(?:would|i['’]d|we['’]d) rather\b|"
    r"\bmy first choice\b|\bin favou?r of\b",
    r"\b(?:i|we|user|customer|client|boss|team) (?:only |just |really |always |also |still )?(?:wants?|"
    r"wish(?:es)?)(?: only)? (?:the|all|every|each|it|them|this|no|any|an?|my|our|your|everything|nothing|only|white|"
    r"black|answers?|reports?)\b",
    r"\b(?:i|we) (?:need|want) [^.]*\b(?:instead of|rather than)\b|\b(?:i|we) only want\b|\b(?:i|we) want only\b|"
    r"\b(?:i|we) (?:really |also |just |still |definitely )?(?:don['’]?t|do not) (?:want|wish|need) (?:to (?:add|use|"
    r"pay|change|"
    r"include|receive|share|keep|touch|install|spend|exceed|buy|fly|risk|wait|book|cancel|see|have|get|do|make|take)|"
    r"any|an?|the|\w+ (?:insurance|\w+s)|it|that|this)\b",
    r"\b(?:i|we) want to (?:\w+ )?(?:minimi[sz]e|maximi[sz]e|avoid|keep|limit|stay|be /)|\bi want to [^.]* first\b|"
    r"\bplease keep (?:me|us|it|this|that)\b|\bonly interested in\b|\b(?:i['’]ll|i will|we['’]ll|"
    r"we will) stick (?:with|to)\b|\bi want both\b",
    r"\bi want [^.]{1,40} to be\b|\bi want white\b|\bi want [a-z]+[.,]?$",
    # Limits.
    r"\b(?:limit(?:ed)?|cap(?:ped)?|budget|deadline|due|maximum|max|minimum|at most|at least|no (?:more|less|later|"
    r"sooner|earlier|fewer) than|not (?:more|less|later|fewer) than|up to|tops|within|exceed|a fee of)\b[^.]*\d",
    r"\d[^.]*\b(?:limit|cap|budget|deadline|at most|maximum|max|tops|or (?:less|fewer|more|below))\b",
    r"\b(?:one|two|three|four|five|six|ten) [a-z ]+\bmax(?:imum)?\b",
    # What holds from now on, or under a condition.
    rf"^(?:please )?{_ANSWERING}\b[^!?]* (?:when(?:ever)?|(?:every|any|each) time|if) (?:i|you|we) {_ASKING_VERBS}\b|"
    rf"^when(?:ever)? (?:i|you|we) {_ASKING_VERBS}\b[^!?]*, (?:please )?{_ANSWERING}\b",
    r"\binstead,? (?:of [^,]*, )?we (?:just |only )?(?:use|take|do|keep|go)\b|\bwe (?:just|only|simply) (?:use|take|"
    r"keep)\b",
    r"\b(?:any|every|each|all)\b[^.]*, please \w",
    r"\bfrom now on\b|\bgoing forward\b|\bin (?:the )?future, |\bwe no longer\b|\bno longer (?:use|want)\b",
    r"\blet['’]?s (?:use|go with|stick (?:to|with)|keep|switch to|stay with|drop|only|not|never|always|leave)\b",
    rf"\b(?:if|when|whenever|once|before|after|unless|until|in case)\b[^!?]*, (?:then )?(?:please )?{_VERBS}",
    r"^(?:please )?(?:express|format|answer|reply|respond|speak|talk|write|give|return|phrase)(?: (?:me|us|your|the|"
    r"all|every|each|answers?|responses?|repl(?:y|ies)|results?|output|dates?|prices?|amounts?))* (?:only |"
    r"always )?(?:in|as|with|using|without)\b",
    r"\b(?:answers?|responses?|output|code|comments?) (?:is|are) to be\b",
    # Corrections.
    r"\bthat['’]s what i (?:want|meant|need)\b|\bonly if\b|\b(?:scrap|scratch|strike) (?:that|what|the|this)\b|"
    r"\bi meant\b|\bmisspoke\b|\bignore (?:what|(?:everything|all) (?:i|we))\b|\bdisregard\b",
    rf"\b{_REPEALED}\b[^.]*\b(?:no longer|any ?more|doesn['’]t apply|is (?:lifted|gone|off|over|void))\b|\b(?:drop|"
    rf"forget|ignore|lift(?:ed)?|cancel|remove|relax) (?:the|that|this|my|our) [^.]*\b{_REPEALED}\b|\blifted the\b|"
    rf"\btake back what\b",
    r"\b(?:is|are|it['’]s) (?:fine|ok(?:ay)?|allowed) (?:again|after all|now)\b|\byou (?:may|can) [^.?]*\bagain\b|"
    r"\b(?:it['’]s|it is) (?:fine|ok(?:ay)?|allowed) to \w+ [^.?]*\b(?:now|again|after all)\b",
    r"\bon second thoughts?\b|^(?:sorry,? |ok,? |so,? )?change of plans?[,:.!;]|\bchanged (?:my|our) mind\b|"
    r"\bactually meant\b|\bnever ?mind\b",
    r"^(?:no|nope),? (?:the|we|use|only|put|make|not the|don['’]?t|i want|[a-z]+ should|it['’]s (?:the|not))\b",
    r"^actually,? (?:it|it['’]s|the|use|make|we|put|don['’]?t|please|i want|i['’]d)\b|^(?:wait|sorry),? (?:no|not|the|"
    r"it|use|make)\b",
)
_ENGLISH_DECISIONS: Final = (
    r"\b(?:i['’]ve|i have|we|we['’]ve|we have) (?:now |finally |all |both )?(?:decided|agreed|settled)(?: on| to|"
    r" that| against| for|:|,)",
    r"\b(?:team|board|management|boss|client|customer) (?:has |have )?(?:decided|agreed|insists?)\b",
    r"\bit(?:['’]s| is| was)(?: now)? decided\b|\b(?:the|our|final|my) decision(?: is|:| was| stands)|\bdecision:|"
    r"^(?:new|updated|revised|final) (?:plan|direction|approach|goal|scope|rule|requirement)\b[^:]{0,20}: \S",
)
"""The words of a decision, if no time in the past makes them a story."""


@cache
def _rule_set() -> re2.Set:
    """English rules and decisions. Together with the forms, they would need too many states."""
    return _compile_set((*_ENGLISH_RULES, *_ENGLISH_DECISIONS))


def compile_forms() -> None:
    """Compiles all expressions. A thread may do it in the background, so that no search waits for it."""
    _form_set(), _rule_set()
    for form in SentenceForm.all_forms:
        form.expression  # noqa: B018


_SIGNS: Final = (
    *(_LASTING_WORDS, _LIMIT, _GENERALIZING_WORD, _ORDER, _NEGATED, _TASTE, _DECISION, _PENDING, _MODAL_VERB, _CHANGE),
    _CORRECTS,
)
"""The forms of the sentences that are ranked by them."""


class Claim(msgspec.Struct, frozen=True):
    """The content of one sentence, for comparison with others.

    `words` leave out figures; `figures` come in order, each with whether it is a value (an amount, a limit, a date).
    `subject` are the words before "is", `value` those after it, `has_value` says whether they have a value's form.
    `stem` is all but the last word.
    """

    words: frozenset[str]
    figures: tuple[tuple[str, bool], ...]
    subject: frozenset[str]
    value: frozenset[str]
    has_value: bool
    stem: frozenset[str]
    is_negative: bool


def split_sentences(line: str) -> list[str]:
    """Splits a line into sentences, verbatim."""
    starts = [0]
    for end in _SENTENCE_END.finditer(line):
        # Read from the start of the sentence, a line of abbreviations would take the square of its length.
        after_sign = end.start() + 1
        abbreviation_start = max(starts[-1], after_sign - _MAX_ABBREVIATION_LENGTH)
        if not _ABBREVIATION.search(line, abbreviation_start, after_sign):
            starts.append(end.end())
    return [part for start, end in pairwise([*starts, len(line)]) if (part := line[start:end].strip())]


def needs_previous(sentence: str) -> bool:
    """Whether a sentence cannot be understood without the one before it."""
    return _DEPENDENT.match(sentence) is not None


def rank_sentence(sentence: str) -> int:
    """Returns the rank of a user's sentence, from STATEMENT to RULE, or 0 for a remark.

    The clauses of a long sentence are ranked one by one, and so is what stands before a question.
    """
    text = BULLET.sub("", sentence)
    if len(text) > _MAX_SENTENCE_LENGTH:
        clauses = split_clauses(text)
        return max(map(rank_sentence, clauses)) if len(clauses) > 1 else 0
    statement, question = _split_question(text)
    rank = max(_rank_statement(statement) if statement else 0, _rank_question(question) if question else 0)
    return max(rank, FACT) if statement and _HELP.match(question) and _is_about_speaker(statement) else rank


def _is_about_speaker(text: str) -> bool:
    """Whether a text says something of its speaker, and not only a few words."""
    is_long = len(text.split()) > _MIN_WORDS or not text.isascii()
    return is_long and _FIRST_PERSON.is_in(text.lower()) and not (is_remark(text) or _WISH.match(text))


def split_clauses(text: str) -> list[str]:
    """Splits a long sentence at its semicolons, dashes and conjunctions, verbatim, into parts of some length."""
    starts = [0]
    for boundary in _CLAUSE_BOUNDARY.finditer(text):
        if boundary.end() - starts[-1] >= _MIN_CLAUSE_LENGTH:
            starts.append(boundary.end())
    return [part for start, end in pairwise([*starts, len(text)]) if (part := text[start:end].strip(" ,;–—"))]


def _split_question(text: str) -> tuple[str, str]:
    """Splits a sentence into what it states and what it asks at its end."""
    if text[-1:] not in "?？":
        return ("", text) if _is_open_question(text) else (text, "")
    if _TAG_QUESTION.search(text) is not None:
        return text, ""
    for boundary in () if _ASKING.match(text) is not None else _QUESTION_BOUNDARY.finditer(text):
        if _ASKING.match(text, boundary.end()) is not None:
            # Who asks "..., right?" is not sure of it.
            is_doubted = _DOUBT.match(text, boundary.end()) is not None
            return ("", text) if is_doubted else (text[: boundary.start()], text[boundary.end() :])
    return "", text


def _rank_question(text: str) -> int:
    """Returns the rank of a question: it may ask for something to be done, now or always."""
    small = text.lower()
    request = _ASKED_FOR.match(small)
    if request is None:
        return STATEMENT if _ASKED.is_in(small) and has_particulars(text) else 0
    if _INQUIRY.match(small, request.end()) is not None:
        return REQUEST
    task = text[request.end() :].rstrip("?？")
    return RULE if _is_lasting(task, _remove_reports(task.lower()), is_asked=True) else REQUEST


def _rank_statement(text: str) -> int:
    """Returns the rank of a sentence that asks nothing."""
    small = text.lower()
    if not any(form.is_in(small) for form in _SIGNS) and not _match_set(_rule_set(), small):
        return _rank_without_sign(text)
    is_conjecture = any(word in small for word in _CONJECTURE_WORDS) and _CONJECTURE.search(small) is not None
    is_exclamation, small = text[-1:] in "!！", _remove_reports(small)
    if _is_lasting(text, small) and (not is_exclamation or _EMPHATIC.match(text) is not None):
        return RULE
    if is_conjecture or _is_agreement(text):
        return 0
    is_taste = _TASTE.is_in(small)
    is_report = small.lstrip().startswith("~")
    is_request = (opens_with_verb(text) and not is_report) or is_taste or _MODAL_VERB.is_in(small)
    if is_exclamation or (is_greeting(text) and not is_request):
        return _rank_without_sign(text)
    if len(text) <= BRIEF and _is_brief_fact(text, small, is_request=is_request, is_taste=is_taste):
        return FACT
    is_particular = has_particulars(text)
    if is_particular and _CHANGE.is_in(small):
        is_fact = len(text) <= BRIEF and not (opens_with_verb(text) or _WISH.match(text))
        return FACT if is_fact else REQUEST
    if is_request or _PENDING.is_in(small):
        return REQUEST
    return STATEMENT if is_particular else 0


def _is_brief_fact(text: str, small: str, *, is_request: bool, is_taste: bool) -> bool:
    """Whether a short sentence with signs states something that lasts."""
    if is_request and _ABOUT_A_KIND.match(text):
        return True
    is_done_once = is_request and _BARE_PLURAL.search(text) is None
    if not is_done_once and has_particulars(text) and _is_self_contained(text):
        return True
    return is_taste or any(form.is_in(small) for form in (_PENDING, _CORRECTS, _DECISION))


def _rank_without_sign(text: str) -> int:
    """Returns the rank of a sentence with no form of `_SIGNS` and no pattern of a rule: most have neither."""
    is_particular = has_particulars(text)
    if _PROHIBITION.match(text) is not None:
        return RULE
    if _is_expression(text):
        return 0
    if len(text) <= BRIEF and is_particular and _is_self_contained(text):
        return FACT
    return REQUEST if opens_with_verb(text) else STATEMENT if is_particular else 0


def is_order(sentence: str) -> bool:
    """Whether a sentence orders something by its form, whoever wrote it: it opens with a verb, obliges or forbids."""
    signs = _EMPHASIZED.search(sentence) or _PROHIBITION.match(sentence) or _NEGATIVE_ORDER.match(sentence)
    return signs is not None or opens_with_verb(sentence) or _OBLIGATION.is_in(sentence.lower())


def opens_with_verb(sentence: str) -> bool:
    """Whether a sentence, or what follows a heading in it, opens like a request."""
    return _begins_with(_ALL_IMPERATIVES | _ORDER_OPENINGS, sentence)


def addresses_reader(text: str) -> bool:
    """Whether a text speaks of its speaker or its listener."""
    return _ADDRESS.is_in(text.lower())


def is_remark(text: str) -> bool:
    """Whether a sentence only greets, thanks, praises, agrees, exclaims or asks, and states nothing particular."""
    if text[-1:] in "?？":
        return _split_question(text)[0] == ""
    if is_greeting(text) and len(text) <= BRIEF // 2 and _PARTICULARS.search(text) is None:
        return True
    if _is_agreement(text):
        return True
    return text[-1:] in "!！" and len(text) <= BRIEF // 2 and not has_particulars(text)


def is_greeting(text: str) -> bool:
    """Whether a text opens with a greeting, thanks or praise."""
    return _PRAISE.match(text) is not None


def _is_open_question(text: str) -> bool:
    """Whether a sentence without a question mark asks something."""
    return _QUESTION.match(text) is not None and not _OBLIGATION.is_in(text.lower())


def _is_agreement(text: str) -> bool:
    """Whether a short sentence only agrees, encourages or says goodbye."""
    assent = _ASSENT.match(text)
    if assent is not None and opens_with_verb(text[assent.end() :]):
        return _is_agreement(text[assent.end() :])
    return len(text) <= BRIEF // 2 and _AGREEMENT.match(text) is not None and _PARTICULARS.search(text) is None


def _is_expression(text: str) -> bool:
    """Whether a sentence without signs is a greeting, thanks, praise or an exclamation; none states a value."""
    if _is_agreement(text):
        return True
    is_expressive = text[-1:] in "!！" or is_greeting(text)
    return is_expressive and not (_find_copula(text)[1] or _begins_with(_ALL_IMPERATIVES, text))


def has_particulars(text: str) -> bool:
    """Whether a sentence has an amount, a date, a name, an address, an identifier or a quotation."""
    if _PARTICULARS_SIGN.search(text) and _PARTICULARS.search(text):
        return True
    text = without_vocative(text)
    return _CAPITALIZED.search(text) is not None and (_GERMAN.search(text) is None or _NAMES.search(text) is not None)


def without_vocative(text: str) -> str:
    """Returns a sentence without the name of the listener."""
    return _VOCATIVE.sub("", text)


def _has_rule_pattern(text: str) -> bool:
    """Whether a text in small letters has a pattern of an English rule. A decision in the past is none."""
    matches = _match_set(_rule_set(), text)
    return bool(matches) and (min(matches) < len(_ENGLISH_RULES) or _PAST.search(text) is None)


def _remove_reports(text: str) -> str:
    """Replaces the words that say how something is, in a text in small letters."""
    if any(word in text for word in _REPORTING_WORDS):
        text = _REPORT.sub(" ~ ", _REPORTED.sub(" ", text))
    return text


def _is_lasting(text: str, small: str, *, is_asked: bool = False) -> bool:
    """Whether a sentence is a rule. `small` is the text in small letters, without reports.

    `is_asked`: it is what somebody is asked to do, and opens with a verb.
    """
    if '"' in small or "“" in small:
        small = _QUOTED_ORDER.sub(" ~ ", small)
    if _match_set(_rule_set(), small) or any(word in small for word in _CONJECTURE_WORDS):
        small = _TALK.sub(" ~ ", small)
    is_ordered = opens_with_verb(text)
    is_correction = _CORRECTS.is_in(small) and (is_ordered or is_asked or "instead" not in small)
    return (
        _has_rule_pattern(small)
        or _LASTING_WORDS.is_in(small)
        or _EMPHASIZED.search(text) is not None
        or _ONLY.search(text) is not None
        or (is_ordered and not is_asked and _GENERALIZING_WORD.is_in(small))
        or (_ORDER.is_in(small) and _CONDITION.is_in(small))
        or _PROHIBITION.match(text) is not None
        or (_NEGATED.is_in(small) and _begins_with(_FOREIGN_IMPERATIVES, text))
        or (is_correction and has_particulars(text) and _PAST.search(small) is None)
        or (_FIGURE.search(text) is not None and _LIMIT.is_in(small) and _PAST.search(small) is None)
    )


def _is_self_contained(text: str) -> bool:
    """Whether a sentence with particulars can be understood without the ones before it."""
    if _find_copula(text)[1]:
        return True
    if _FIGURE.search(text) and _RATE.is_in(text.lower()):
        return True
    if _DIALOGUE.match(text) or _NARRATION.match(text) or _GERMAN.search(text):
        return False
    # A request about one certain thing is done once.
    return not _begins_with(_IMPERATIVES, text) or _BARE_PLURAL.search(text) is not None


def _begins_with(verbs: frozenset[str], text: str) -> bool:
    """Whether a sentence, or what follows a heading in it, begins with one of the verbs."""
    return any(match.group(1).lower() in verbs for match in _OPENING_WORD.finditer(text))


def rank_promise(sentence: str) -> int:
    """Returns the rank of a promise, or of something that an assistant left open; 0 for any other sentence."""
    small = sentence.lower()
    is_promise = _PROMISE.is_in(small) or (_SPEAKER.is_in(small) and _LATER.is_in(small)) or _PENDING.is_in(small)
    if not is_promise or sentence[:1] == '"' or sentence[-1:] in ":：" or _OFFER.is_in(small):
        return 0
    is_particular = _PARTICULARS.search(sentence) or _CAPITALIZED.search(sentence)
    return FACT if len(sentence) <= BRIEF and is_particular else STATEMENT


def states_taste(sentence: str) -> bool:
    """Whether somebody says what he likes or dislikes."""
    return _TASTE.is_in(sentence.lower())


def is_change(sentence: str) -> bool:
    """Whether something is different from now on."""
    return _CHANGE.is_in(sentence.lower())


def is_correction(sentence: str) -> bool:
    """Whether something was wrong."""
    return _CORRECTS.is_in(sentence.lower())


def parse_claim(sentence: str) -> Claim:
    """Splits a sentence into the parts by which it is compared with others."""
    copula, has_value, start = _find_copula(sentence)
    subject, value_words = frozenset[str](), frozenset[str]()
    if copula is not None:
        subject = words_of(_CHANGE.expression.sub(" ", sentence[start : copula.start()].lower()))
        value_words = words_of(sentence[copula.end() :].strip())
    figures = tuple((match.group().strip(" ."), _is_value(sentence, match)) for match in _FIGURE.finditer(sentence))
    text_without_figures = _FIGURE.sub(" ", sentence)
    stem = words_of(_CHANGE.expression.sub("", text_without_figures.lower()).strip(" .!。！").rpartition(" ")[0])
    return Claim(
        words_of(text_without_figures),
        figures,
        subject,
        value_words,
        has_value,
        stem,
        _NEGATION.is_in(sentence.lower()),
    )


def parse_item(text: str) -> Claim:
    """Splits an item of a list of facts. Its value is a name or figure after "is", or follows its last preposition.

    "The capital of Peru is Lima" and "Ana was born in the city of Porto" have the values Lima and Porto.
    """
    copula = _COPULA.search(text)
    end = copula.end() if copula is not None else 0
    if copula is None or not _NAME_OR_FIGURE.match(text, end):
        end = max((match.end() for match in _LINK.finditer(text, end)), default=end)
    subject, value = text[:end].lower(), text[end:].rstrip(" .").lower()
    if not end or not value:
        subject, _, value = text.rstrip(" .").lower().rpartition(" ")
    words = frozenset(subject.split())
    return Claim(words | {value}, (), words, frozenset(value.split()), True, frozenset(), False)


def _find_copula(sentence: str) -> tuple[re.Match[str] | None, bool, int]:
    """Returns the "is" of a sentence, whether a value follows it, and where the sentence starts."""
    # The text up to the last colon is a heading such as "Note:".
    start = max((heading.end() for heading in _HEADING.finditer(sentence)), default=0)
    copula = _COPULA.search(sentence, start)
    if copula is None:
        return None, False, start
    value = sentence[copula.end() :].strip()
    return copula, len(value.split()) <= _VALUE_WORDS and _VALUE.search(value) is not None, start


def _is_value(sentence: str, figure: re.Match[str]) -> bool:
    text = figure.group()
    return (
        _VALUE_SIGN.search(text) is not None
        or _UNIT.match(sentence, figure.end()) is not None
        or _BOUND.search(sentence[max(0, figure.start() - _MAX_DISTANCE) : figure.start()]) is not None
    )

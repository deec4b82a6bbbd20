"""Patterns of English phrases that mark a preference, a decision, a solution, an open question or an order.

Agents mostly write English. Names (paths, identifiers, numbers) are recognised in any language.
"""

from __future__ import annotations

import re
from typing import Final

USER_WANTS: Final = re.compile(
    r"\b(?:I|we)(?:['’]d| would)? (?:really |strongly |always |usually )?(?:prefer|like|love|hate|dislike|favou?r)\b|"
    r"\b(?:I|we) (?:don['’]?t (?:like|want)|never want|always want|want you to (?:always|never))\b|"
    r"\b(?:always|never|from now on|in (?:the )?future|going forward|whenever|every time)\b|"
    r"\b(?:please )?(?:do not|don['’]?t) (?:ever )?(?:use|touch|change|add|edit|commit|push|run|write|create|delete|"
    r"remove|rename|modify|include|show|call|send)\b|"
    r"\b(?:use|stick (?:to|with)|keep) [^.?!]{2,80} (?:instead of|rather than|over)\b|\bonly (?:ever )?use\b|"
    r"\b(?:make sure|ensure) (?:to |that |you )",
    re.IGNORECASE,
)
DECIDES: Final = re.compile(
    r"\b(?:let['’]?s|let us|(?:I|we)(?:['’]ll| will| shall)) (?:go with|use|keep|switch to|stick (?:to|with)|drop|"
    r"choose|take)\b|"
    r"\b(?:I|we)['’]?d (?:go|stick) with\b|\bgoing with\b",
    re.IGNORECASE,
)
DECIDED: Final = re.compile(
    r"\b(?:I|we|you|the user|the team)(?:['’]ve| have)? (?:decided|chose|chosen|agreed|settled on|picked|opted)\b|"
    r"\b(?:the|our) (?:decision|choice) (?:is|was)\b|"
    r"\b(?:was|were|is|are) (?:chosen|selected|decided|preferred) (?:over|because|as|for)\b|"
    r"\bdecided (?:to|on|against)\b",
    re.IGNORECASE,
)
SOLVES: Final = re.compile(
    r"\b(?:root cause|caused by|turned out|the (?:fix|solution|cause|culprit|workaround) (?:is|was)|resolved by|"
    r"solved by|fixed (?:by|the|in|a|an)|fixes the|(?:bug|problem|issue|error|failure|crash) (?:is|was) "
    r"(?:that|in|at|due|because|fixed|resolved|solved)|(?:fails?|failed|breaks|broke|crash\w*) because)\b",
    re.IGNORECASE,
)
OPEN: Final = re.compile(
    r"\b(?:still (?:needs?|open|unclear|unknown|missing|failing|fails|unresolved)|open question|not yet (?:clear|"
    r"decided|implemented|supported|done|known)|unresolved|remains? (?:to be|open|unclear|unknown|unsolved)|to be "
    r"decided|TBD|left for later|deferred (?:to|until)|known limitation|needs? (?:further|more) (?:investigation|work)|"
    r"(?:I|we) (?:don['’]?t|do not) (?:yet )?know (?:yet |how|why|what|whether|if))\b",
    re.IGNORECASE,
)
STATES: Final = re.compile(
    r"\b(?:is|are|was|were|uses?|lives?|contains?|returns?|requires?|depends?|stores?|has|have|runs?|supports?|expects?|"
    r"reads?|writes?|takes?|calls?|means|defaults?|costs?|starts?|ends?|holds?|handles?|implements?|defines?|exists?|"
    r"replaces?|created?|added|removed|renamed|moved|updated|extracted|implemented|changed|passes|passed|fails|failed|"
    r"keeps?|overrides?|shows?|sends?|receives?|loads?|sets?|gets?|gives?|checks?|builds?|serves?|accepts?|rejects?|"
    r"wraps?|extends?|inherits?|refers?|prints?|emits?|validates?|parses?|produces?|provides?|includes?|adds?|throws?|"
    r"raises?|references?|opens?|covers?|lacks?|ignores?|skips?|breaks?|broke|allows?|enables?|disables?|"
    r"belongs?|works?|maintains?|owns?|listens?|points?|matches|needs?)\b",
    re.IGNORECASE,
)
MAY: Final = re.compile(
    r"\b(?:can|could|will|would|should|shall|must|may|might|do|does|did|cannot)\b|n['’]t\b|['’](?:s|re|ll|ve|d)\b",
    re.IGNORECASE,
)
"""Auxiliary verbs."""
PLANS: Final = re.compile(
    r"^(?:(?:now|ok|okay|great|good|perfect|alright|first|next|then|so|well|excellent|right|also|and|finally|wait|hmm|"
    r"actually|i see|yes|no|sure|absolutely|certainly|of course)\b[,.!:–— -]*)*"
    r"(?:to confirm,? )?(?:let me|let['’]?s|I['’]?ll|I will|I am going|I['’]?m going|I need|I should|"
    r"I['’]?d (?:be|like)|I can\b|I could|I want|we need|we should|we can|we could|would you|do you|want me|"
    r"shall I|should I|could you|can you|feel free|"
    r"please|to (?:help|assist|proceed|do)|if you|here['’]?s|here (?:is|are)|looking at|you can|you should|you may|"
    r"thank|sorry|apologi)",
    re.IGNORECASE,
)
VERBS: Final = (
    r"please|fix|add|make|create|write|update|change|remove|delete|run|look|read|check|find|show|explain|review|"
    r"implement|refactor|rename|move|test|investigate|debug|generate|build|confirm|provide|engage|search|verify|identify|"
    r"ensure|maintain|extract|collect|submit|document|do|tell|give|try|use"
)
BIDS: Final = re.compile(
    rf"(?:(?:now|next|then|also|and|finally|first(?:ly)?|second(?:ly)?|third(?:ly)?|lastly)\b[,:]? +)*(?:{VERBS})\b",
    re.IGNORECASE,
)
"""The beginning of an imperative sentence."""
ASKS: Final = re.compile(
    r"^(?:(?:hi|hey|hello|ok|okay|so|now|and|also|then|yes|no|great|good|nice|cool|alright)\b[,.! ]*)*"
    r"(?:can you|could you|would you|will you|i want you|i need you|i['’]?d like|i would like|help me|let['’]?s|lets|"
    rf"what|how|why|where|when|which|who|is|are|does|did|{VERBS})\b",
    re.IGNORECASE,
)
ORDERS: Final = re.compile(
    r"\b(?:ignore|disregard|forget|override|bypass)\b[^.]{0,40}\b(?:instructions?|rules?|prompts?|above|previous|prior|"
    r"everything|guidelines)\b|\bsystem prompt\b|\byou (?:are now|must now|must always|have been)\b|"
    r"\b(?:new|updated|important) instructions?\b|\bdo not (?:tell|inform|mention)\b|"
    r"\bas an? (?:AI|language model|agent)\b|"
    r"\b(?:assistant|AI|agent|model)s? (?:must|should|shall|has to|needs to)\b",
    re.IGNORECASE,
)
"""A text that gives orders to its reader. Only the user may write one, and it stays a quotation."""

"""Does the seat still answer like itself? Known answers, a golden of its own, garbage, stream against no stream.

Two kinds of model: one that can answer is held to the known answers; a test model that cannot is held to its own first
answer, the golden. Tolerant of what is legal: at temperature 0 the same prompt may take another path where two tokens
are nearly equal, so only tokens with a clear lead are compared.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...core.health.garbage import garbage
from ...core.health.probe_report import EXIT_CANARY, Check
from ..evidence import write_atomic
from ..vllm import Completion, SeatError
from .evidence import load_state, subject
from .session import Session, user
from .workloads import prompt

#: A token counts in comparisons when it led the runner-up by this many nats.
CLEAR_LEAD = 0.5
_GOLDEN_TOKENS = 16
_ANSWER_TOKENS = 48
_PROSE_TOKENS = 200
_GOLDEN_PROMPT = "Name the months of the year in order, separated by commas."
#: For templates that know it; others ignore it.
NO_THINKING: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}


@dataclass(frozen=True)
class Question:
    """A question with an answer that is not a matter of taste."""

    name: str
    text: str
    answer: str


def questions() -> list[Question]:
    """Return the known questions; the number to copy is new each time, so that no cache can answer."""
    number = "".join(random.choices("123456789", k=12))
    return [
        Question("copy", f"Repeat exactly this number and nothing else: {number}", number),
        Question("product", "What is 17*23? Answer with the number only.", "391"),
        Question("capital", "What is the capital of France? Answer with one word.", "Paris"),
    ]


def check_canary(session: Session) -> None:
    """Ask for one known answer and compare the seat's golden: a few dozen tokens, safe on a live seat."""
    mode = session.manifest.canary
    if mode == "off":
        session.not_checked("canary", "switched off in the seat's manifest")
        return
    golden = _Golden(session)
    if mode in ("auto", "answers"):
        _known_answers(session, golden, questions()[:1])
    golden.compare(session)


def check_canary_deep(session: Session) -> None:
    """Ask all known questions, look for garbage in a longer text, compare stream and no stream."""
    mode = session.manifest.canary
    if mode == "off":
        return
    golden = _Golden(session)
    if mode in ("auto", "answers"):
        _known_answers(session, golden, questions()[1:])
    _stream_is_not_another(session)
    if golden.capable or mode == "answers":
        _garbage(session)
    else:
        session.not_checked("canary.garbage", "the model answers no known question, so its text proves nothing")


def _ask(session: Session, question: Question) -> str:
    """Return everything the model said, thinking included."""
    answer = session.client.stream(session.body(user(question.text), _ANSWER_TOKENS, **NO_THINKING))
    return f"{answer.reasoning}\n{answer.text}"


def _known_answers(session: Session, golden: _Golden, asked: Sequence[Question]) -> None:
    """Fail on a wrong answer of a model that is known to answer; only remember it of one that never did."""
    said = {question.name: _ask(session, question) for question in asked}
    wrong = [question for question in asked if question.answer.lower() not in said[question.name].lower()]
    for question in asked:
        golden.remember(question.name, question not in wrong)
    for question in asked:
        name = f"canary.{question.name}"
        if question not in wrong:
            session.ok(name, question.answer, question.answer)
            continue
        text = said[question.name].strip()[:120]
        must = session.manifest.canary == "answers" or golden.answered(question.name)
        why = f"asked {question.text!r}, got {text!r}"
        status, why = ("fail", why) if must else ("warn", f"{why}: a test model, or corrupt weights")
        session.check(Check(name, status, question.answer, text, None, why, EXIT_CANARY))
    golden.save()


def compare_tokens(old: Sequence[int], leads: Sequence[float | None], new: Sequence[int]) -> int | None:
    """Return the first position where the new tokens contradict the old ones, None when they do not.

    A difference where the old token had no clear lead is legal, and what follows it is another text: not compared.
    """
    for position, (before, after) in enumerate(zip(old, new, strict=False)):
        if before != after:
            lead = leads[position] if position < len(leads) else None
            return position if lead is not None and lead > CLEAR_LEAD else None
    return None


@dataclass(frozen=True)
class _Tokens:
    """Token ids, and by how many nats each led the runner-up."""

    ids: list[int] = field(default_factory=list)
    leads: list[float | None] = field(default_factory=list)


class _Golden:
    """The seat's own first answer, and which known questions it ever answered; of one release and model."""

    def __init__(self, session: Session) -> None:
        self.path = session.options.evidence / "golden.json" if session.options.evidence else None
        self.subject = subject(session.manifest)
        state = load_state(self.path)
        same = state.get("subject") == self.subject
        kept = _Tokens(list(state.get("tokens") or ()), list(state.get("leads") or ()))
        self.mine = kept if same else _Tokens()
        self.other = _Tokens() if same else kept  # of the release before
        self.answers: dict[str, bool] = dict(state.get("answers") or {}) if same else {}
        self._answered_before = dict(self.answers)

    @property
    def capable(self) -> bool:
        """Whether the model has answered every known question it was ever asked."""
        return bool(self.answers) and all(self.answers.values())

    def answered(self, name: str) -> bool:
        """Return True when an earlier probe of this release got the right answer."""
        return self._answered_before.get(name, False)

    def remember(self, name: str, right: bool) -> None:
        """Keep whether a question was answered; once right stays right."""
        self.answers[name] = right or self.answers.get(name, False)

    def save(self) -> None:
        """Write the file."""
        if self.path is not None:
            content = {
                "subject": self.subject,
                "tokens": self.mine.ids,
                "leads": self.mine.leads,
                "answers": self.answers,
            }
            write_atomic(self.path, json.dumps(content) + "\n")

    def compare(self, session: Session) -> None:
        """Compare today's answer with the golden, or keep it as the golden of this release."""
        if self.path is None:
            session.not_checked("canary.golden", "no evidence directory to keep a golden in")
            return
        answer = _golden_answer(session)
        if any(math.isnan(chosen) for chosen, _ in answer.logprobs):
            why = "a log probability is NaN: the logits are corrupt"
            session.check(Check("canary.golden", "fail", None, None, None, why, EXIT_CANARY))
            return
        if self.mine.ids:
            different = compare_tokens(self.mine.ids, self.mine.leads, answer.token_ids)
            if different is not None and not answer.logprobs:  # no leads were measured: once more before it counts
                answer = _golden_answer(session)
                different = compare_tokens(self.mine.ids, self.mine.leads, answer.token_ids)
            if different is None:
                session.ok("canary.golden", "the golden's tokens", "the same where they had a clear lead")
                return
            why = (
                f"token {different} of {len(self.mine.ids)} is {answer.token_ids[different]}, the golden has "
                f"{self.mine.ids[different]} with a clear lead: the same release now computes something else"
            )
            seen = list(answer.token_ids)
            session.check(Check("canary.golden", "fail", self.mine.ids, seen, None, why, EXIT_CANARY))
            return
        if compare_tokens(self.other.ids, self.other.leads, answer.token_ids) is not None:
            session.report.warnings.append("canary.golden: this release answers otherwise than the one before")
        leads = [lead for _, lead in answer.logprobs]
        if not leads:
            # Without leads the tokens that two runs agree on count as clear.
            again = _golden_answer(session).token_ids
            same = compare_tokens(answer.token_ids, [math.inf] * len(answer.token_ids), again)
            leads = [math.inf] * (len(answer.token_ids) if same is None else same)
        self.mine = _Tokens(list(answer.token_ids), [None if lead is None else min(lead, 100.0) for lead in leads])
        self.save()
        session.ok("canary.golden", None, "recorded", evidence="first probe of this release: kept as the golden")


def _golden_answer(session: Session) -> Completion:
    return session.client.stream(session.body(user(_GOLDEN_PROMPT), _GOLDEN_TOKENS, **session.leads(), **NO_THINKING))


def _stream_is_not_another(session: Session) -> None:
    """Compare a streamed and a whole answer to one prompt."""
    messages = user(prompt("count", 7))
    streamed = session.client.stream(session.body(messages, _ANSWER_TOKENS))
    whole = session.client.chat(session.body(messages, _ANSWER_TOKENS))
    if streamed.text == whole.text:
        session.ok("canary.stream", "the same text streamed and whole", "the same")
    elif streamed.token_ids == whole.token_ids and whole.token_ids:
        why = f"the same tokens, but {streamed.text[:80]!r} streamed and {whole.text[:80]!r} whole"
        session.check(Check("canary.stream", "fail", whole.text, streamed.text, None, why, EXIT_CANARY))
    else:
        why = "two runs of one prompt at temperature 0 took different tokens; legal, but look when it repeats"
        session.check(Check("canary.stream", "warn", None, None, None, why))


def _garbage(session: Session) -> None:
    """Look at a longer text, with log probabilities: NaN shows as an error 500 or as null there."""
    body = session.body(user(prompt("prose", 3)), _PROSE_TOKENS, **session.leads(), **NO_THINKING)
    try:
        answer: Completion = session.client.stream(body)
    except SeatError as error:
        why = f"asked for log probabilities: {error}"
        session.check(Check("canary.garbage", "fail", None, None, None, why, EXIT_CANARY))
        return
    found = garbage(answer.text + answer.reasoning, answer.token_ids, [chosen for chosen, _ in answer.logprobs])
    status, why = ("fail", f"{'; '.join(found)}: {answer.text[:120]!r}") if found else ("ok", "")
    session.check(Check("canary.garbage", status, "text", len(answer.token_ids), "tokens", why or None, EXIT_CANARY))

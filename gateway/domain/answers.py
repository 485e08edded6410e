"""Answers of workers: collects their parts, and compares the record at the end with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol.identifiers import Digest
from protocol.openai.bodies import ClientBody
from protocol.openai.errors import InvalidRequest
from protocol.openai.replies import FINISH_REASONS, WholeChoice
from protocol.wire.answers import AnswerRecord
from protocol.wire.serving import AnswerTokens


def part_fault(tokens: AnswerTokens, *, choices: int, with_pieces: bool) -> str | None:
    """Returns what is wrong with tokens of a choice, or None."""
    if tokens.choice >= choices:
        return f"choice {tokens.choice} was not asked for"
    if len(tokens.logprobs) != len(tokens.tokens):
        return f"{len(tokens.tokens)} tokens have {len(tokens.logprobs)} log-probabilities"
    if len(tokens.pieces) != (len(tokens.tokens) if with_pieces else 0):
        return f"{len(tokens.tokens)} tokens have {len(tokens.pieces)} pieces"
    return None


@dataclass(slots=True)
class CollectedChoice:
    """The parts of one choice, joined."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    text: str = ""

    def add(self, part: AnswerTokens) -> None:
        """Adds further tokens."""
        self.tokens += part.tokens
        self.logprobs += part.logprobs
        self.pieces += part.pieces
        self.text += part.text


class CollectedAnswer:
    """The parts of one attempt at a request.

    Args:
        choices: Number of choices.
    """

    def __init__(self, choices: int) -> None:
        self.choices = [CollectedChoice() for _ in range(choices)]

    def add(self, parts: Sequence[AnswerTokens]) -> None:
        """Adds a part."""
        for part in parts:
            self.choices[part.choice].add(part)

    def whole(self, record: AnswerRecord) -> list[WholeChoice]:
        """Returns the choices of the finished answer."""
        return [
            WholeChoice(
                index=index,
                text=choice.text,
                tokens=choice.tokens,
                logprobs=choice.logprobs,
                pieces=choice.pieces,
                finish=FINISH_REASONS[sample.finish],
            )
            for index, (choice, sample) in enumerate(zip(self.choices, record.samples, strict=True))
        ]

    def used(self, record: AnswerRecord) -> tuple[int, int]:
        """Returns the numbers of tokens in prompts and choices."""
        return sum(len(one) for one in record.prompts), sum(len(one.tokens) for one in self.choices)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedAnswer:
    """Expected values of the record of an answer.

    Args:
        body: The client's request.
        seed: The seed that the gateway chose.
        version: Digest of the served version.
        arithmetic: Arithmetic of the session.
        limit: Maximum number of new tokens of one choice, by the session's lease.
    """

    body: ClientBody
    seed: Digest
    version: Digest
    arithmetic: str
    limit: int

    def differences(self, record: AnswerRecord, collected: CollectedAnswer) -> list[str]:
        """Returns what the record has otherwise than the request and the parts."""
        found = []
        if record.version != self.version:
            found.append("the version is not that of the session")
        if record.arithmetic != self.arithmetic:
            found.append("the arithmetic is not that of the session")
        if record.seed != self.seed:
            found.append("the seed is not that of the request")
        each = self.body.sampling.n or 1
        if [one.sample for one in record.samples] != list(range(self.body.choices)):
            return [*found, f"the record has not the {self.body.choices} choices of the request"]
        prompts = self.body.choices // each
        if len(record.prompts) != prompts or [one.prompt for one in record.samples] != [
            place for place in range(prompts) for _ in range(each)
        ]:
            found.append(f"the record has not the {prompts} prompts of the request")
        found += self._sampling_differences(record)
        for sample, choice in zip(record.samples, collected.choices, strict=True):
            if sample.token_ids != choice.tokens or sample.logprobs != choice.logprobs:
                found.append(f"choice {sample.sample} is not that of the parts")
            if len(sample.token_ids) > record.sampling.max_new_tokens:
                found.append(f"choice {sample.sample} has more tokens than the limit")
        return found

    def _sampling_differences(self, record: AnswerRecord) -> list[str]:
        wanted = self.body.new_tokens
        written = record.sampling.max_new_tokens
        if not 1 <= written <= self.limit or (wanted is not None and written != wanted):
            return [f"the limit of new tokens is {written}"]
        try:
            parameters = self.body.sampling.parameters(written)
        except InvalidRequest as error:
            return [error.detail]
        same = (parameters.temperature, parameters.top_p, parameters.top_k) == (
            record.sampling.temperature,
            record.sampling.top_p,
            record.sampling.top_k,
        )
        return [] if same else ["the sampling parameters are not those of the request"]


class SentTokens:
    """The tokens that a stream's client has, with which another attempt's tokens are compared.

    Args:
        choices: Number of choices.
    """

    def __init__(self, choices: int) -> None:
        self._sent: list[list[int]] = [[] for _ in range(choices)]
        self._text = [0] * choices
        self._again = [0] * choices
        self._text_again = [0] * choices

    def start_again(self) -> None:
        """Begins another attempt: its first tokens are compared instead of sent."""
        self._again = [0] * len(self._sent)
        self._text_again = [0] * len(self._sent)

    def news(self, part: AnswerTokens) -> AnswerTokens | None:
        """Returns the tokens that the client does not have yet.

        Returns None if the tokens that the client has already are other ones.
        """
        sent, at = self._sent[part.choice], self._again[part.choice]
        known = sent[at : at + len(part.tokens)]
        if list(part.tokens[: len(known)]) != known:
            return None
        self._again[part.choice] = at + len(part.tokens)
        sent += part.tokens[len(known) :]
        # Attempts may cut the text at other tokens, so characters are counted instead.
        before = self._text_again[part.choice]
        self._text_again[part.choice] += len(part.text)
        text = part.text[max(0, self._text[part.choice] - before) :]
        self._text[part.choice] = max(self._text[part.choice], self._text_again[part.choice])
        return AnswerTokens.model_construct(
            choice=part.choice,
            tokens=part.tokens[len(known) :],
            logprobs=part.logprobs[len(known) :],
            pieces=part.pieces[len(known) :],
            text=text,
        )

"""Wire model of a verifiable answer: the field `muster` of every answer to an OpenAI client."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from protocol.identifiers import WireDigest

Tokens = Annotated[
    list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(min_length=1, max_length=1 << 20, fail_fast=True)
]

MOST_SAMPLES = 4096


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class RecordedSampling(_Record):
    """The sampling parameters of an answer."""

    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int


class RecordedSample(_Record):
    """One choice of an answer."""

    sample: Annotated[int, Field(ge=0, lt=1 << 32)]
    """The choice's index. With the seed, this number keys the noise of every token."""
    prompt: Annotated[int, Field(ge=0)]
    """Index of the choice's prompt in `AnswerRecord.prompts`."""
    token_ids: Tokens
    """The tokens, including an end token."""
    logprobs: Annotated[list[float], Field(fail_fast=True)]
    """float32 log-probability of each token, log-softmax(logits / temperature)."""
    finish: Literal["eos", "length"]
    """Reason why the answer ended: an end token, or the limit of new tokens."""
    proofs: str | None
    """TOPLOC proofs in base64; None if the service builds none."""


class AnswerRecord(_Record):
    """All that is needed to verify an answer with the version's folder."""

    version: WireDigest
    """Digest of the version that generated the answer."""
    arithmetic: str
    """Engine and data type, or the numerics class."""
    seed: Annotated[str, Field(pattern=r"^0x[0-9a-f]{64}$")]
    """The request's 32 bytes, as hexadecimal text after 0x."""
    sampling: RecordedSampling
    prompts: Annotated[list[Tokens], Field(min_length=1, max_length=MOST_SAMPLES, fail_fast=True)]
    """Token ids of each prompt."""
    samples: Annotated[list[RecordedSample], Field(min_length=1, max_length=MOST_SAMPLES, fail_fast=True)]
    """The choices, by index."""

    @property
    def seed_bytes(self) -> bytes:
        """The seed."""
        return bytes.fromhex(self.seed[2:])

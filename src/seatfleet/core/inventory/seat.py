"""A seat as the rest of the code sees it: checked, sizes in bytes, defaults filled in.

:func:`seatfleet.core.inventory.schema.load_seat` makes one from what the operator wrote; nothing else constructs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Evidence:
    """Why a setting is what it is, so that nobody takes a choice for a measurement.

    ``state`` is one of :data:`seatfleet.core.inventory.schema.EVIDENCE_STATES`; ``reference`` names the report.
    """

    state: str
    note: str
    reference: str | None = None

    def __str__(self) -> str:
        """One line for tables: ``unmeasured: k=1..3 not yet compared on this card``."""
        source = f" ({self.reference})" if self.reference else ""
        return f"{self.state}: {self.note}{source}"


@dataclass(frozen=True)
class Speculative:
    """``speculative:`` of a seat. ``model`` is a catalogue entry, None for methods without a drafter (mtp, ngram)."""

    method: str
    num_speculative_tokens: int
    model: str | None = None
    attention_backend: str | None = None
    engine: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Alias:
    """One model name at the gateway: who may call it, with which sampling defaults and limits."""

    name: str
    keys: tuple[str, ...]
    sampling: Mapping[str, float | int] = field(default_factory=dict)
    chat_template_kwargs: Mapping[str, Any] | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    fallback: str | None = None
    access_groups: tuple[str, ...] = ()
    adopt: bool = False


@dataclass(frozen=True)
class Probe:
    """What the probe expects of a seat, and how long a start, a drain and a stop may take.

    ``acceptance`` maps a workload (``count``, ``code``, ``prose``, ``agent``) to the least mean acceptance length; None
    takes the bands of the method. ``canary`` is one of :data:`seatfleet.core.seat.manifest.CANARY_MODES`.
    ``ready_timeout_s`` bounds the wait from start to READY, ``drain_timeout_s`` that for running requests,
    ``stop_timeout_s`` that from SIGTERM to an empty cgroup.
    """

    acceptance: Mapping[str, float] | None = None
    canary: str = "auto"
    ready_timeout_s: int = 1800
    drain_timeout_s: int = 300
    stop_timeout_s: int = 120


@dataclass(frozen=True)
class Node:
    """One host of a seat over two, with its address and interface on the link between them."""

    host: str
    address: str
    interface: str


@dataclass(frozen=True)
class Nodes:
    """The hosts of a seat over two: first the head, which owns seat, port and aliases, then its follower.

    On ``port`` of the head the follower asks what to run (:mod:`seatfleet.core.link`), on the next the processes of
    the engine find each other.
    """

    port: int
    hosts: tuple[Node, ...]

    @property
    def head(self) -> Node:
        """The host that the seat is declared on."""
        return self.hosts[0]

    @property
    def rendezvous_port(self) -> int:
        """Where the processes of the engine find each other (vLLM's ``--master-port``)."""
        return self.port + 1

    def rank(self, host: str) -> int:
        """Return the place of a host, 0 for the head.

        Raises:
            ValueError: it is none of them.
        """
        return [node.host for node in self.hosts].index(host)


@dataclass(frozen=True)
class Seat:
    """One served model on given GPUs of one host, or of two."""

    name: str
    host: str
    model: str
    release: str
    port: int
    max_model_len: int
    gpus: tuple[int | str, ...]
    kv_cache_memory: int | None  # bytes
    gpu_memory_utilization: float | None
    profile: str | None = None
    bind: str = "0.0.0.0"
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    tensor_parallel_size: int = 1
    nodes: Nodes | None = None
    kv_cache_why: Evidence | None = None
    speculative: Speculative | None = None
    speculative_why: Evidence | None = None  # set exactly when speculative is None
    prefix_caching: bool = True
    attention_backend: str | None = None
    moe_backend: str | None = None
    kv_cache_dtype: str | None = None
    mamba_block_size: int | None = None
    mamba_ssm_cache_dtype: str | None = None
    enforce_eager: bool = False
    reasoning_parser: str | None = None
    tool_call_parser: str | None = None
    engram_cpu_offload: bool | None = None
    host_memory: int | None = None  # bytes of host RAM the seat pins (an offloaded table)
    env: Mapping[str, str] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)
    aliases: tuple[Alias, ...] = ()
    probe: Probe = field(default_factory=Probe)
    state: str = "present"

    @property
    def ranks(self) -> int:
        """How many processes compute, on all hosts together."""
        return max(1, len(self.gpus)) * len(self.nodes.hosts) if self.nodes else self.tensor_parallel_size

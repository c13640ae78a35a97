"""The tables of what serves: engines, the router before them, and sessions."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - pydantic reads annotations
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from miles_core.config.tables import PluginTable, Table


class EngineGroup(BaseModel):
    """``[[engine.groups]]``: servers alike, with options of their own beside those of ``[engine]``."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    count: int = Field(1, ge=1, description="servers of the group")


class EngineTable(PluginTable):
    """``[engine]``: the inference servers."""

    use: str = "embedded"
    count: int = Field(1, ge=1, description="servers behind the router, where there are no groups")
    groups: tuple[EngineGroup, ...] = Field((), description="servers with other options, all behind the router")
    start_timeout: float = Field(600.0, gt=0, description="seconds until a server must be ready")
    max_restarts: int = Field(
        2, ge=0, description="times that a server that dies is started again; counted anew after an hour of serving"
    )
    pause_mode: Literal["in_place", "retract", "abort"] = Field(
        "in_place", description="what happens to running requests at a weight update"
    )

    @property
    def servers(self) -> tuple[EngineTable, ...]:
        """One table for each server, in the order of their indices, with the options of its group."""
        if not self.groups:
            return (self,) * self.count
        host = self.model_dump(exclude={"groups", "count"} | set(self.options))
        return tuple(
            EngineTable.model_validate({**host, **self.options, **(group.__pydantic_extra__ or {})})
            for group in self.groups
            for _ in range(group.count)
        )

    @model_validator(mode="after")
    def _groups_count(self) -> EngineTable:
        if self.groups and self.count != 1:
            raise ValueError(f"count = {self.count} beside groups: give each group its own count")
        for group in self.groups:
            if host := sorted(set(group.__pydantic_extra__ or {}) & set(type(self).model_fields)):
                raise ValueError(f"{host[0]} cannot differ between groups: set it in [engine]")
        return self


class RouterTable(Table):
    """``[router]``: address and middleware stack, first outermost."""

    host: str = "127.0.0.1"
    port: int = Field(0, ge=0, le=65535, description="0 picks a free port")
    policy: Literal["least_in_flight", "round_robin"] = "least_in_flight"
    middleware: tuple[PluginTable, ...] = ()


class SessionTable(Table):
    """``[session]``: how requests find the turns that they continue, and which turns become a sample."""

    match: str = Field(
        "tool_arguments", description="how messages are compared: exact, tool_arguments, or module:attribute"
    )
    pick: str = Field(
        "leaves", description="the turns whose conversations are trained: leaves, last, longest, or module:attribute"
    )
    renderer: str = Field("template", description="what writes messages as tokens: template, or module:attribute")
    tool_calls: str = Field(
        "template", description="what finds calls in a turn: template (as it writes them), none, or module:attribute"
    )
    reasoning: str = Field(
        "template",
        description="what parts thought from speech: template (as it writes both), none, or module:attribute",
    )
    clock: datetime | None = Field(
        None, description="the time that chat templates are told; default: when a session is opened"
    )
    audit: int = Field(1, ge=0, description="trajectories of a step that are compared with a fresh render")
    host: str = Field("127.0.0.1", description="where the session server listens")
    port: int = Field(0, ge=0, le=65535, description="its port; 0 picks a free one")
    ttl: float = Field(3600.0, ge=1, description="seconds without a request after which a session is closed")
    max_sessions: int = Field(4096, ge=1, description="sessions open at once; more are refused")
    max_session_tokens: int = Field(1 << 21, ge=1, description="tokens that one session may keep; more are refused")
    max_body_bytes: int = Field(32 << 20, ge=1, description="bytes of one request; longer ones are refused")

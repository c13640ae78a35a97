"""Imports what a server imports: a set-up fails here if something is missing, and leaves compiled code behind."""

import stand_ins  # type: ignore[import-not-found] # it is beside this file

stand_ins.install()

import sglang.srt.entrypoints.http_server  # type: ignore[import-not-found] # noqa: E402
import sglang.srt.managers.detokenizer_manager  # type: ignore[import-not-found] # noqa: E402
import sglang.srt.managers.scheduler  # type: ignore[import-not-found] # noqa: E402
import sglang.srt.models.registry  # type: ignore[import-not-found] # noqa: F401, E402

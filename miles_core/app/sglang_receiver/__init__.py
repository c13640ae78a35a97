"""Our receiver inside SGLang: what a server loads through its entry-point group ``sglang.srt.plugins``.

It runs in SGLang's environment: it imports the standard library, torch, SGLang and what SGLang requires.
"""

from miles_core.app.sglang_receiver.hooks import install

__all__ = ["install"]

"""SGLang's server without a GPU: ``python serve.py OPTIONS``, where OPTIONS are those of sglang.launch_server.

The stand-ins are put in place here and not by one of SGLang's plugins, which are loaded too late (``import sglang``
needs torchvision) and whose errors SGLang only logs. Running this file puts its folder on the path: ``sgl_kernel`` is
found there. A process that SGLang starts by itself runs this file again, so it has them too.
"""

import runpy

import stand_ins  # type: ignore[import-not-found] # it is beside this file

stand_ins.install()

if __name__ == "__main__":
    runpy.run_module("sglang.launch_server", run_name="__main__")

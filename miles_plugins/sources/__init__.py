"""Built-in data sources.

Files are lists of blocks (``blocks.py`` and one ``*_blocks.py`` per format), ``order.py`` walks them in windows,
``task_rows.py`` makes tasks of rows, and ``file_source.py`` joins the three.
"""

"""One conformance suite per kind of plugin; each test is a rule, its name the rule's id, its docstring the rule."""

"""Empty packages for names that SGLang imports everywhere and needs nowhere on CPU.

Decorators give the function back; every other attribute is one more empty thing. A Triton kernel that is launched all
the same fails, for a plain function has no `[grid]`.
"""

# mypy: ignore-errors
import importlib.abc
import importlib.machinery
import sys
import types


class AnyClass(type):
    """A class with every class attribute (its own name) and every constructor."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name

    def __call__(cls, *args, **kwargs):
        return object.__new__(cls)


class StandIn(types.ModuleType):
    """A module with every attribute: a class where the name is capitalised, else a module that is also a decorator."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = AnyClass(name, (), {}) if name[0].isupper() else StandIn(name)
        setattr(self, name, value)
        return value

    def __call__(self, *args, **kwargs):
        if len(args) == 1 and callable(args[0]) and not kwargs:
            return args[0]
        return lambda fn: fn


class Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every submodule of one package."""

    def __init__(self, package):
        self.prefix = package + "."

    def find_spec(self, name, path=None, target=None):
        if name.startswith(self.prefix):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


def install(package):
    """Make an imported package answer every attribute and every submodule."""
    sys.modules[package].__class__ = StandIn
    sys.meta_path.insert(0, Submodules(package))

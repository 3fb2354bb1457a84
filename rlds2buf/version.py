"""The version, in a module of its own: nothing inside the package imports the package's top."""

__all__ = ["__version__"]

__version__ = "0.2.0"

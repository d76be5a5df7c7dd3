"""Train small models short, evaluate them long, with every position scheme."""

__version__ = "0.1.0"

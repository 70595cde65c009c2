"""The actions of the shell. Each reads, decides in the core, does one thing, and records."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from settled.steps import adopt as adopt
    from settled.steps import attend as attend
    from settled.steps import awaiting as awaiting
    from settled.steps import notice as notice
    from settled.steps import pausing as pausing
    from settled.steps import persons as persons
    from settled.steps import propose as propose
    from settled.steps import resolve as resolve
    from settled.steps import restore as restore
    from settled.steps import show as show
    from settled.steps import submit as submit
else:
    from settled.lazily import modules_of

    __getattr__ = modules_of(__name__)

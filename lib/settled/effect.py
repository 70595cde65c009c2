"""A declared effect of one App: what `@app.effect` leaves under the handler's name."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from settled.contract import EffectContract

if TYPE_CHECKING:
    from settled.app import App
    from settled.operation import Operation

F = TypeVar("F", bound=Callable[..., Any])


class Effect:
    """Submit it, or add its probe and postcondition. It cannot be called: an effect runs only under the protocol."""

    def __init__(self, app: "App", contract: EffectContract) -> None:
        self.app, self.contract = app, contract
        self.__doc__ = getattr(contract.handler, "__doc__", None)

    @property
    def name(self) -> str:
        """The contract's name."""
        return self.contract.name

    @property
    def handler(self) -> Callable[..., Any] | None:
        """The handler function itself, for its own unit tests."""
        return self.contract.handler

    def submit(self, arguments: dict[str, Any], **options: Any) -> "Operation":
        """`App.submit` of this effect."""
        return self.app.submit(self, arguments, **options)

    async def asubmit(self, arguments: dict[str, Any], **options: Any) -> "Operation":
        """`App.asubmit` of this effect."""
        return await self.app.asubmit(self, arguments, **options)

    def execute(self, arguments: dict[str, Any], **options: Any) -> "Operation":
        """`App.execute` of this effect."""
        return self.app.execute(self, arguments, **options)

    def probe(self, function: F) -> F:
        """Add the outcome probe."""
        return self.contract.probe(function)

    def postcondition(self, function: F) -> F:
        """Add the postcondition."""
        return self.contract.postcondition(function)

    def __call__(self, *_: object, **__: object) -> NoReturn:
        """Refuse: a direct call would be recorded nowhere."""
        raise TypeError(
            f"{self.name} is an effect and is not called directly. Nothing was sent. "
            f"Use {self.name}.submit(...) or app.execute({self.name}, ...)"
        )

    def __repr__(self) -> str:
        return f"Effect({self.contract!r})"

"""A label of a metric."""


class Dimension:
    """A label's name and value."""

    def __init__(self, name: str, value: object) -> None:
        self.name = name
        self.value = value

    def __str__(self) -> str:
        return f"{self.name}:{self.value}"

    def to_dict(self) -> dict[str, object]:
        """Return it as a dict."""
        return {"Name": self.name, "Value": self.value}

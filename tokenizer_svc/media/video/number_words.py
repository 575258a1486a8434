"""Number words: writes numbers below a thousand in English, as SmolVLM's prompts name the number of frames."""

_SMALL = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen"),
    *("fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_TWENTY, _HUNDRED, _TEN = 20, 100, 10


def in_words(number: int) -> str:
    """Return a number from 0 to 999 in words ("one hundred and twenty-eight"), as the package num2words writes it."""
    hundreds, rest = divmod(number, _HUNDRED)
    if not hundreds:
        return _below_hundred(rest)
    text = f"{_SMALL[hundreds]} hundred"
    return f"{text} and {_below_hundred(rest)}" if rest else text


def _below_hundred(number: int) -> str:
    if number < _TWENTY:
        return _SMALL[number]
    tens, ones = divmod(number, _TEN)
    return _TENS[tens - 2] + (f"-{_SMALL[ones]}" if ones else "")

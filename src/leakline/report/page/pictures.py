"""The first screen about images: for each seat the client and the image that are worst off, and what stops it."""

from __future__ import annotations

from collections.abc import Sequence

from leakline.privacy import Seat
from leakline.results import Results, Setting
from leakline.results.settings import Rebuilt, rebuilt


def picture_words(results: Results, settings: Sequence[Setting]) -> list[str]:
    """What each seat of the server sees of the clients' images under one defence."""
    leaks = [leak for s in settings for leak in s.leaks if leak.measure == "ssim"]
    seats = {leak.by: str(leak.readings[0].about.get("seat", Seat.SERVER)) for leak in leaks}
    honest = sum(seat != Seat.MALICIOUS_SERVER for seat in seats.values())
    found = _seen(rebuilt(settings, Seat.SERVER), honest, _stops(results))
    return found + _taken(rebuilt(settings, Seat.MALICIOUS_SERVER))


def stopped(results: Results, seat: Seat) -> tuple[str, ...]:
    """The defences of the study under which attacks of this seat got nowhere, wherever they were given what they need.

    Nowhere: over all attacked images no nearer than a guess, and none found again.
    """
    found = []
    for defence in results.defences:
        images = [rebuilt([s], seat) for s in results.settings_of(defence)]
        known = [image for image in images if image is not None]
        if known and all(_nothing(image) for image in known):
            found.append(defence)
    return tuple(found)


def _nothing(image: Rebuilt) -> bool:
    low, _ = image.mean.interval
    reached = image.mean.estimate.mean if low is None else low
    return not image.mean.short and reached <= (image.mean.chance or 0.0) and not image.again_mean


def _seen(image: Rebuilt | None, attacks: int, stops: str) -> list[str]:
    """How like their originals the images were that an attack rebuilt from updates."""
    if image is None:
        return []
    sure = _interval(image.mean.interval)
    who = (
        f"The attack {image.by}" if attacks == 1 else f"The best of {attacks} attacks that rebuild images ({image.by})"
    )
    whole = f" The mean of all attacked there is {image.mean.estimate.mean:.2f}{sure}." if image.client else ""
    like = f"similarity (SSIM) {image.ssim:.2f}{_interval(image.ends) if image.client else sure}; 1 is the same image"
    guess = f"a guess without the update has {image.guess:.2f}"
    if image.ssim > image.guess and not image.client and image.mean.is_chance:
        return [f"{who} may have rebuilt nothing: {like}, and {guess}, which cannot be told apart. A better one may."]
    if image.ssim > image.guess:
        whose = f"{image.client}'s images" if image.client else "images"
        return [f"{who} rebuilt {whose} from what clients sent: {like}, and {guess}.{_worst(image)}{whole}{stops}"]
    if image.mean.short:
        return [f"{who} was {image.mean.short}: that it rebuilt nothing says nothing ({like}; {guess})."]
    return [f"{who} rebuilt nothing: its images are no nearer than a guess ({like}; {guess}).{whole} A better one may."]


def _taken(image: Rebuilt | None) -> list[str]:
    """What a server that alters the model takes, and what stops it."""
    if image is None:
        return []
    whose = f"{image.client}'s images" if image.client else "images"
    sure = _interval(image.ends if image.client else image.mean.interval)
    like = f"similarity (SSIM) {image.ssim:.2f}{sure}, a guess has {image.guess:.2f}"
    if image.ssim <= image.guess:
        return [f"A server that alters the model it sends ({image.by}) takes nothing from {whose}: {like}."]
    return [
        f"A server that alters the model it sends ({image.by}) takes {whose}: {like}.{_worst(image)} Clients that "
        "check what they are sent (pinned-model) refuse it, and noise that a client adds itself drowns it."
    ]


def _worst(image: Rebuilt) -> str:
    """The image that is most like its original, and whether images are found again."""
    again = "" if image.again is None else f"; {100 * image.again:.0f} of 100 are found again among all images"
    if image.nearest is None or image.count < 2:
        return f" It is {'' if image.again else 'not '}found again among all images." if _one(image) else _ended(again)
    whether = {None: "", True: ", found again among all images", False: ", not found again among all images"}
    return f" The worst image has {image.nearest:.2f}{whether[image.nearest_again]}{again}."


def _one(image: Rebuilt) -> bool:
    return image.count == 1 and image.again is not None


def _ended(text: str) -> str:
    return f" Of its images{text[1:]}." if text else ""


def _stops(results: Results) -> str:
    """Which defences of the study stop a server that keeps to the rules; "" where none was tried."""
    if all(s.undefended for d in results.defences for s in results.settings_of(d)):
        return ""
    stops = stopped(results, Seat.SERVER)
    return f" Under {', '.join(stops)} it rebuilt nothing." if stops else " No defence tried here stops it."


def _interval(ends: tuple[float | None, float | None]) -> str:
    low, high = ends
    return "" if low is None or high is None else f", 95 % interval {low:.2f} to {min(high, 1.0):.2f}"

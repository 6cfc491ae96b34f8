"""A user's word segmenter, for tests."""

LEXICON = ("北京", "大学", "学生")


def cut(text: str) -> list[str]:
    """Finds the longest word at each index, from the left: ``我在北京大学 -> 我 在 北京 大学``."""
    words = []
    while text:
        word = next((word for word in LEXICON if text.startswith(word)), text[0])
        words.append(word)
        text = text[len(word) :]
    return words


def lose(text: str) -> list[str]:
    """Returns words without the last character of the text."""
    return [text[:-1]]

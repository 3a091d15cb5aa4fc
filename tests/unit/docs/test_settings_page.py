"""docs/settings.md lists the settings as the services declare them."""

from scripts import settings


def test_settings_page_is_what_the_services_declare() -> None:
    assert settings.PAGE.read_text() == settings.page(), "run python -m scripts.settings"


def test_settings_of_all_services_are_few() -> None:
    assert settings.page().count("\n| `--") <= 134

import pytest

from accordion.composition import features
from accordion.composition.features import NoTranslator, create_translator
from accordion.model.errors import MissingFeature
from accordion.model.ports import Route


async def test_without_translation_a_model_that_needs_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "FEATURES", ())
    translator = create_translator()
    assert isinstance(translator, NoTranslator)
    with pytest.raises(MissingFeature, match="Translation between providers' protocols was left out of this proxy"):
        await translator.send("chat", b"{}", Route("m", "litellm", "", model="bedrock/m"), "")
    await translator.close()

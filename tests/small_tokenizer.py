"""A real tokenizer, trained on a few lines: every word of them is a token."""

from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

LINES = [
    "the sample at this position is a pure function of seed and epoch",
    "",
    "a worker holds nothing",
    "every batch of the run comes exactly once and in order",
    "resume is a seek",
]

_SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def small_tokenizer(*without: str, **options) -> PreTrainedTokenizerFast:
    """The tokenizer, without some of its special tokens; it frames a text like BERT's does."""
    raw = Tokenizer(models.WordLevel(unk_token=_SPECIAL["unk_token"]))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(special_tokens=list(_SPECIAL.values()))
    raw.train_from_iterator(LINES, trainer)
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[(token, raw.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    special = {name: token for name, token in _SPECIAL.items() if name not in without}
    return PreTrainedTokenizerFast(tokenizer_object=raw, **special, **options)

"""Smaller dtypes, checked: converters for samples and batches.

from dataporter.converters import KeyBasedDtypeConverter

converter = KeyBasedDtypeConverter({"image": "float16", "label": "int32"})
loader = ResumableDataLoader(dataset, converter=converter)   # runs in the workers
print(converter.report(dataset[0]))                          # bytes before and after
"""

from dataporter.converters.dtype_converter import DtypeConverter, KeyBasedDtypeConverter
from dataporter.converters.report import ConversionReport, ReportRow

__all__ = ["ConversionReport", "DtypeConverter", "KeyBasedDtypeConverter", "ReportRow"]

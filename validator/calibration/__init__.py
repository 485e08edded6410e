"""Calibration: measures honest work to set the limits of statistical checks per model, engine and data type.

`honest` generates files like those of honest nodes, for each engine, data type and batch size. `figures` collects the
measurements of a verifier on these files. `limits` derives the entries of a calibration from the measurements.
`measuring` runs these three steps for one version.

`classes` compares files of numerics classes, which have no differences and so no limits.
"""

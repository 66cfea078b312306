"""The report: tables of a study → one self-contained HTML paper. `build.build` is the door."""

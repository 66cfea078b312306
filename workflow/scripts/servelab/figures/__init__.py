"""Figures, one module a kind: `figures(analysis, style) -> list[claims.Figure]`, drawn with `style.Style`."""

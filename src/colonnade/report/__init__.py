"""A run as one page: `facts` reads a run directory, `page` draws it, `write` saves it,
`compare` sets several beside each other.

The page is one file without a single reference to anything outside it. Its figures are
drawn as SVG here, so they show without JavaScript and print; `page.js` adds read-outs,
zooming, sorting and downloads.
"""

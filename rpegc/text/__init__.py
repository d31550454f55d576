"""The text form of a problem: lexer, tree, parser, printer, and both ways between trees and problems.

    text --parse--> tree --elaborate--> problem --compose--> tree --print--> text

The grammar stands in `rpegc.text.grammar`. Printing and parsing are inverse, and a problem that goes
through text is the same problem; comments belong to the tree.
"""

"""Taking over a cache that the JavaScript original wrote: its rows, once, and how far they were delivered.

| module | owns |
|---|---|
| `cache` | what lies where in such a cache: partitions, the live table of each, spools |
| `table` | an Iceberg table of it as plain files, under the path where it lies now |
| `deletes` | rows of a data file that were deleted: deletion vectors, position deletes |
| `variant` | Parquet's VARIANT as JSON values |
| `survey` | what there is to take: every file with its old sequences, before anything is reserved |
| `numbering` | which of our sequences a row gets: in the order of the old ones |
| `adapt` | a row of the original as a row of ours |
| `plain_rows` | columns of a data file as rows of plain values |
| `judging` | a row of the original made ours, or refused with a reason; what is counted |
| `pieces` | a data file or a spool file as a piece of a build |
| `watermarks` | how far each of its sinks had delivered |
| `destinations` | which of our sinks continues which of its sinks, if that can be known |
| `delivered` | what a watermark of the original means in our sequences |
| `take_in` | one dataset, in one commit |
| `request` | what was asked for, and what can be said before anything is taken |
| `take_over` | the whole of it, with the means of whoever runs it: `run`, an engine; `dry` writes nothing |
| `outcome` | what came of it |
"""

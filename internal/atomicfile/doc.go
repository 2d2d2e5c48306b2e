// Package atomicfile writes files that are there whole or not at all.
//
// A file that has its name is complete and on disk, and readable by its owner alone. Whatever fails on the way leaves neither a
// part of it nor a change of what was there before. Nothing that is there is replaced unless the caller says so.
package atomicfile

// Package dbfile opens bbolt files.
//
// A file that it opens is sound as a whole, locked, and the one that its path leads to; what is wrong with a file is told
// and changes nothing. Nothing that is in a file, or becomes of it while it is open, takes the process with it: bbolt
// trusts what it reads, so that a damaged page leads it anywhere.
package dbfile

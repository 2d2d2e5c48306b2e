// Package boltfile opens bbolt files, checks them, and reads their pages without bbolt.
//
// A file that it opens is sound as a whole, locked, and the one that its path leads to. What is wrong with a file is told and
// changes nothing. bbolt trusts what it reads: a page that leads out of the file, round in a circle or through four billion pages
// takes the process with it, in a goroutine where nobody can catch that. So pages are walked first by [Walk]: whatever a file
// holds, that ends and leads nowhere out of it, without a panic and with no more memory than the file is long.
//
// A walk holds the pages to the layout that bbolt gives them, one element right after the other and each key between
// those of its neighbours, so that no wrong count, size or order hides a key. It writes nothing and locks nothing: the
// caller sees to it that the pages of the walk do not change, by the file's lock or by a read transaction of bbolt.
package boltfile

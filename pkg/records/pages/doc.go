// Package pages reads the pages of a bbolt file without bbolt.
//
// Whatever a file holds, reading it ends and leads nowhere out of it: no panic, no circle, no fault of a memory
// map, and no more memory than the file is long. bbolt itself trusts what it reads: a page that leads out of the file,
// round in a circle or through four billion pages takes the process with it, in a goroutine where nobody can catch that.
//
// A walk holds the pages to the layout that bbolt gives them, one element right after the other and each key between
// those of its neighbours, so that no wrong count, size or order hides a key. It writes nothing and locks nothing: the
// caller sees to it that the pages of the walk do not change, by the file's lock or by a read transaction of bbolt.
package pages

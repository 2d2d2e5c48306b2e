// Package boltfile implements opening and checking bbolt files, and reading their pages without bbolt.
//
// A file that it opens is sound as a whole, locked, and the one at its path. Damage is returned and changes nothing. bbolt trusts what
// it reads: a page that refers to a place outside of the file, to itself or to four billion pages ends the process, in a goroutine
// of bbolt where the panic cannot be recovered. So [Walk] reads the pages first: for any content of the file it ends, reads only
// the file, does not panic and needs no more memory than the size of the file.
//
// A walk holds the pages to the layout that bbolt gives them, one element right after the other and each key between
// those of its neighbours, so that no wrong count, size or order hides a key. It writes nothing and locks nothing: the
// caller sees to it that the pages of the walk do not change, by the file's lock or by a read transaction of bbolt.
package boltfile

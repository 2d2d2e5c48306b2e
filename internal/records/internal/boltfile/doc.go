// Package boltfile implements opening and checking bbolt files, and reading their pages without bbolt.
//
// An opened file is sound as a whole, locked, and the one at its path. Open returns damage and does not change the
// file. bbolt does not validate what it reads: a page that refers to a place outside of the file, to itself or to four
// billion pages ends the process, in a goroutine of bbolt where the panic cannot be recovered. So [Walk] reads the
// pages first: for any content of the file, it ends, reads only the file, does not panic, and needs at most as much
// memory as the size of the file.
//
// A walk checks that the pages have the layout that bbolt writes: each element directly follows the previous one, and
// the keys are in order. So a wrong count, size or order cannot hide a key. A walk does not write and does not lock:
// the caller must prevent changes to its pages, by the file's lock or by a read transaction of bbolt.
package boltfile

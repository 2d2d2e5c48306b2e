// Package boltfile implements opening and checking bbolt files, and reading their pages without bbolt.
//
// bbolt does not validate what it reads: a page that refers to a place outside of the file, to itself or to four
// billion pages ends the process, in a goroutine where the panic cannot be recovered. So [Walk] reads the pages first:
// for any content of the file, it ends, does not panic, and needs at most as much memory as the size of the file. It
// checks that the pages have the layout that bbolt writes: each element directly follows the previous one, and the keys
// are in order, so that a wrong count, size or order cannot hide a key.
package boltfile

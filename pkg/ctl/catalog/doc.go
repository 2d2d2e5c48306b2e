// Package catalog reads what the daemon knows: whole lists, of which the admin API gives pages, the whole store, of which
// it gives pieces, and what may be meant by the beginning of an ID or of a name.
//
// It promises that what it returns is whole, or cut where the caller wanted it, or an error, and that the beginning of
// an ID stands for one ID or for none.
package catalog

// Package text puts what pullgated says onto a terminal, into a file or through a pipe.
//
// It promises that what others chose, such as the name of an image, is printed and does nothing else: every
// control character, and every other that shows as nothing or turns a line round, is written as an escape, in
// text, JSON and YAML alike. Tenants choose names, and a terminal obeys what it is sent.
package text

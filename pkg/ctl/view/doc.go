// Package view says the answers of pullgated's admin API as text for people.
//
// It promises that the same answer, at the same time, is the same text: it has no clock, asks nobody and knows of no
// terminal. What a script is to read it does not make; that is JSON, of package text.
package view

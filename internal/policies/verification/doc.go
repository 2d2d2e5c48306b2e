// Package verification has what pullgated and pullgate-policyd say to each other about signatures of images: credentials, reasons and results.
package verification

package config

import (
	"net"
	"path/filepath"
	"strconv"
	"strings"
)

// isPath reports whether a string is the absolute path of a file, written in its shortest form.
func isPath(s string) bool {
	return filepath.IsAbs(s) && filepath.Clean(s) == s && s != "/"
}

// isLabel reports whether a string is a DNS label (RFC 1123), as the name of a namespace must be.
func isLabel(s string) bool {
	if s == "" || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for _, c := range s {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// isSubdomain reports whether a string is a DNS subdomain (RFC 1123), as the name of a node must be.
func isSubdomain(s string) bool {
	for label := range strings.SplitSeq(s, ".") {
		if !isLabel(label) {
			return false
		}
	}
	return len(s) <= 253
}

// isAddress reports whether a string is host:port with a port that can be listened on.
func isAddress(s string) bool {
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

package node

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// Leaks returns an error for each place below a directory or in a text that contains a password of the logins.
func Leaks(dir, text string) error {
	texts := map[string]string{"the text": text}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		texts[path] = string(data)
		return err
	})
	for _, l := range []Login{Alice(), Dora(), Mallory()} {
		for form, needle := range forms(l.Password) {
			for where, text := range texts {
				if strings.Contains(text, needle) {
					err = errors.Join(err, fmt.Errorf("a password is in %s, %s", where, form))
				}
			}
		}
	}
	return err
}

// forms are the encodings of a secret, in base64 after 0, 1 and 2 bytes, without characters that depend on other bytes.
func forms(secret string) map[string]string {
	all := map[string]string{
		"raw":              secret,
		"hex":              hex.EncodeToString([]byte(secret)),
		"upper case hex":   strings.ToUpper(hex.EncodeToString([]byte(secret))),
		"a list of bytes":  strings.Trim(fmt.Sprintf("%d", []byte(secret)), "[]"),
		"escaped for HTTP": url.QueryEscape(secret),
	}
	for before := range 3 {
		padded := append(make([]byte, before), secret...)
		head, tail := []int{0, 2, 3}[before], []int{0, 2, 1}[len(padded)%3]
		for name, encoding := range map[string]*base64.Encoding{
			"base64": base64.RawStdEncoding, "base64 for URLs": base64.RawURLEncoding,
		} {
			text := encoding.EncodeToString(padded)
			all[fmt.Sprintf("%s after %d bytes", name, before)] = text[head : len(text)-tail]
		}
	}
	return all
}

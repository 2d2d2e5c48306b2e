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

// Leaks looks for the passwords of the logins in all files below a directory and in a text, and returns an
// error for each place where it has found one, and in which form.
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

// forms are the encodings in which a secret may be written by accident. Its base64 depends on the number of bytes
// before it, modulo three; characters that depend on other bytes are cut.
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

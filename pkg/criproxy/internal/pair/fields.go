package pair

import (
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http2/hpack"
)

// The fields of a request are checked as RFC 9113 8.2 and 8.3 say, before anything is done with them. Runtimes may be more lenient, or
// lenient in another way, so that they would read another method than this process. The rules:
//
//   - Each of :method, :scheme and :path is there once, :authority at most once, all of them before the other fields, and there is
//     no other pseudo header. The method is POST.
//   - Names are tokens in lower case; values have no control characters, and no space around them.
//   - Fields of a connection are refused. te is trailers.
//   - content-length, if it is there, is the length of the DATA that follow.

// A headerList decodes the header blocks of one direction.
type headerList struct {
	decoder *hpack.Decoder
	fields  []hpack.HeaderField // of the block that is decoded, up to maxHeaderList
	size    int                 // of all of them, as RFC 9113 6.5.2 counts
}

func (h *headerList) init(table uint32) {
	h.decoder = hpack.NewDecoder(table, func(f hpack.HeaderField) {
		if h.size += int(f.Size()); h.size <= maxHeaderList {
			h.fields = append(h.fields, f)
		}
	})
	h.decoder.SetMaxStringLength(maxHeaderList)
}

// A requestHead is what a pair has to know of the header fields of a call.
type requestHead struct {
	path, contentType string
	length            int64 // content-length, or noLength
}

// checkRequest checks the fields of a call (RFC 9113 8.2 and 8.3).
func checkRequest(fields []hpack.HeaderField) (head requestHead, err error) {
	malformed := streamError{codeProtocol}
	head.length = noLength
	pseudo := [...]string{":method", ":scheme", ":path", ":authority"} // the last one need not be there
	var seen [len(pseudo)]bool
	regular := false
	for i := range fields {
		f := &fields[i]
		if !validValue(f.Value) {
			return head, malformed
		}
		if !strings.HasPrefix(f.Name, ":") {
			regular = true
			if err := head.field(f); err != nil {
				return head, err
			}
			continue
		}
		at := slices.Index(pseudo[:], f.Name)
		if at < 0 || seen[at] || regular || f.Name == ":method" && f.Value != "POST" {
			return head, malformed
		}
		seen[at] = true
		if f.Name == ":path" {
			head.path = f.Value
		}
	}
	if slices.Contains(seen[:3], false) || head.path == "" {
		return head, malformed
	}
	return head, nil
}

// field checks a field that is not a pseudo header.
func (h *requestHead) field(f *hpack.HeaderField) error {
	switch f.Name {
	case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
		return streamError{codeProtocol}
	case "te":
		if f.Value != "trailers" {
			return streamError{codeProtocol}
		}
	case "content-type":
		if h.contentType != "" {
			return streamError{codeProtocol}
		}
		h.contentType = f.Value
	case "content-length":
		n, err := strconv.ParseUint(f.Value, 10, 62)
		if err != nil || h.length != noLength {
			return streamError{codeProtocol}
		}
		h.length = int64(n)
	default:
		if !validName(f.Name) {
			return streamError{codeProtocol}
		}
	}
	return nil
}

// checkTrailers checks the fields of trailers, which have no pseudo header.
func checkTrailers(fields []hpack.HeaderField) error {
	var head requestHead
	for i := range fields {
		if !validName(fields[i].Name) || !validValue(fields[i].Value) {
			return streamError{codeProtocol}
		}
		if err := head.field(&fields[i]); err != nil {
			return err
		}
	}
	return nil
}

// validName reports whether a name is a token (RFC 9110 5.6.2) in lower case.
func validName(name string) bool {
	for i := range len(name) {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && !strings.Contains("-_.!#$%&'*+^`|~", name[i:i+1]) {
			return false
		}
	}
	return name != ""
}

// validValue reports whether a value has no control characters but tabulators, and no space around it.
func validValue(value string) bool {
	for i := range len(value) {
		if c := value[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return value == "" || !isSpace(value[0]) && !isSpace(value[len(value)-1])
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' }

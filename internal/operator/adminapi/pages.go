package adminapi

import (
	"encoding/base64"
	"encoding/binary"
	"hash/fnv"

	"google.golang.org/protobuf/proto"
)

// The size of a page, in entries and in bytes.
const (
	defaultPage  = 100
	maxPage      = 1000
	maxPageBytes = 1 << 20
)

// A listRequest has the fields that every request for a page has.
type listRequest interface {
	proto.Message
	GetPageSize() int32
	GetPageToken() string
}

// A page is the requested page of a list, and collects its entries.
type page[T proto.Message] struct {
	size  int
	after string // the key of the last entry of the previous page; "" for none
	scope uint64 // of the list and its filter, so that a token is valid for no other list

	entries []T
	bytes   int
	last    string
	next    string // the token of the next page; "" as long as this may be the last one
}

func pageOf[T proto.Message](req listRequest) (p page[T], err error) {
	p.size = min(int(req.GetPageSize()), maxPage)
	if p.size < 0 {
		return p, invalid("page_size: %d is not allowed; allowed is 0, which means %d, up to %d", p.size, defaultPage, maxPage)
	}
	if p.size == 0 {
		p.size = defaultPage
	}
	filter := proto.Clone(req).ProtoReflect()
	fields := filter.Descriptor().Fields()
	filter.Clear(fields.ByName("page_size"))
	filter.Clear(fields.ByName("page_token"))
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(filter.Interface())
	if err != nil {
		return p, invalid("the filter is not readable: %v", err)
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(filter.Descriptor().Name())) // a hash never fails
	_, _ = h.Write(text)
	p.scope = h.Sum64()
	if req.GetPageToken() == "" {
		return p, nil
	}
	token, err := base64.RawURLEncoding.DecodeString(req.GetPageToken())
	if err != nil || len(token) <= 8 || binary.BigEndian.Uint64(token) != p.scope {
		return p, invalid("page_token: not one of this list with this filter; begin again without")
	}
	p.after = string(token[8:])
	return p, nil
}

// add adds an entry. If the page has no room for it, the page is full and the entry is not added.
func (p *page[T]) add(key string, entry T) (full bool) {
	size := proto.Size(entry)
	if len(p.entries) > 0 && (len(p.entries) >= p.size || p.bytes+size > maxPageBytes) {
		p.next = base64.RawURLEncoding.EncodeToString(append(binary.BigEndian.AppendUint64(nil, p.scope), p.last...))
		return true
	}
	p.entries, p.bytes, p.last = append(p.entries, entry), p.bytes+size, key
	return false
}

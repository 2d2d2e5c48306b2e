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

// A repositoryRequest can be for the entries of one repository.
type repositoryRequest interface {
	listRequest
	GetRepository() string
}

// A pager describes the requested page.
type pager struct {
	size  int
	after string // the key of the last entry of the previous page; "" for none
	scope uint64 // of the list and its filter, so that a token is valid for no other list
}

func pagerOf(req listRequest) (pager, error) {
	p := pager{size: min(int(req.GetPageSize()), maxPage)}
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

// pageOf returns the page and the repository that are requested.
func pageOf(req repositoryRequest) (p pager, repository string, err error) {
	if p, err = pagerOf(req); err == nil {
		repository, err = repositoryOf("repository", req.GetRepository())
	}
	return p, repository, err
}

// token returns the token of the page after the one that ends with the key last.
func (p pager) token(last string) string {
	return base64.RawURLEncoding.EncodeToString(append(binary.BigEndian.AppendUint64(nil, p.scope), last...))
}

// A page collects entries.
type page[T proto.Message] struct {
	pager
	entries []T
	bytes   int
	last    string
	next    string // the token of the next page; "" as long as this may be the last one
}

// add adds an entry. If the page has no room for it, the page is full and the entry is not added.
func (p *page[T]) add(key string, entry T) (full bool) {
	size := proto.Size(entry)
	if len(p.entries) > 0 && (len(p.entries) >= p.size || p.bytes+size > maxPageBytes) {
		p.next = p.token(p.last)
		return true
	}
	p.entries, p.bytes, p.last = append(p.entries, entry), p.bytes+size, key
	return false
}

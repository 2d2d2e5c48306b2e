package cli

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// mostOfPage is the maximum number of entries in one request.
const mostOfPage = 100

// A ListPage is an answer with a page of a list. Its first field has the entries.
type ListPage interface {
	proto.Message
	GetNextPageToken() string
}

// List requests pages until there are limit entries, or all if limit is 0. It returns the last page with the entries of
// all of them, and their number. The NextPageToken of the answer is not empty if there are more entries. List sets the
// size and the token of the request. ask is the method of the list.
func List[Q proto.Message, A ListPage](ctx context.Context, api adminv1.PullRecordsClient, limit int, request Q,
	ask func(adminv1.PullRecordsClient, context.Context, Q, ...grpc.CallOption) (A, error),
) (answer A, count int, err error) {
	to := request.ProtoReflect()
	fields := to.Descriptor().Fields()
	var all []protoreflect.Value
	for token := ""; ; {
		size := mostOfPage
		if limit > 0 {
			size = min(size, limit-len(all))
		}
		to.Set(fields.ByName("page_size"), protoreflect.ValueOfInt32(int32(size)))
		to.Set(fields.ByName("page_token"), protoreflect.ValueOfString(token))
		if answer, err = ask(api, ctx, request); err != nil {
			return answer, 0, err
		}
		page := answer.ProtoReflect()
		entries := page.Mutable(page.Descriptor().Fields().ByNumber(1)).List()
		for i := range entries.Len() {
			all = append(all, entries.Get(i))
		}
		next := answer.GetNextPageToken()
		switch {
		case next == "" || limit > 0 && len(all) >= limit:
			entries.Truncate(0)
			for _, e := range all {
				entries.Append(e)
			}
			return answer, len(all), nil
		case next == token:
			return answer, 0, errors.New("pullgated returns the same page again")
		}
		token = next
	}
}

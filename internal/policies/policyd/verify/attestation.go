package verify

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	protodsse "github.com/sigstore/protobuf-specs/gen/pb-go/dsse"
	"github.com/sigstore/sigstore-go/pkg/bundle"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/policies/condition"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
	"github.com/pullgate/pullgate/internal/policies/requirement"
)

// A statement is an in-toto statement, of which the predicate is decoded when it is needed.
type statement struct {
	Type, PredicateType string
	Subject, Predicate  json.RawMessage

	digests []string // of its subjects
}

// parseStatement reads the payload of an envelope. accepted are the predicate types of the attestations that are read
// beside signatures.
func parseStatement(payloadType string, payload []byte, accepted []string) (*statement, error) {
	if accepted == nil {
		if size := len(payload); size > maxStatement {
			return nil, fmt.Errorf(
				"%w: a statement of %d bytes, such as an attestation; one that signs an image has at most %d",
				errNotSignature, size, maxStatement)
		}
		if err := registry.Bounded(payload); err != nil {
			return nil, fmt.Errorf("%w: %w", errNotSignature, err) // a large attestation
		}
	}
	members, err := registry.Members(payload)
	s := &statement{Subject: members["subject"], Predicate: members["predicate"]}
	for name, value := range map[string]*string{"_type": &s.Type, "predicateType": &s.PredicateType} {
		if err == nil {
			err = json.Unmarshal(members[name], value)
		}
	}
	switch {
	case errors.Is(err, registry.ErrTooLarge):
		return nil, err
	case err != nil, payloadType != bundle.IntotoMediaType:
		return nil, fmt.Errorf("%w: its payload is not a statement", errNotSignature)
	}
	if s.PredicateType != requirement.SignatureType && !slices.Contains(accepted, s.PredicateType) {
		return nil, fmt.Errorf("%w: an attestation of type %s", errNotSignature, clean(s.PredicateType))
	}
	if !slices.Contains([]string{"https://in-toto.io/Statement/v1", "https://in-toto.io/Statement/v0.1"}, s.Type) {
		return nil, fmt.Errorf("%w: a statement of type %s", errNotSignature, clean(s.Type))
	}
	if err := registry.Bounded(s.Subject); err != nil {
		return nil, err
	}
	var subjects []struct {
		Digest map[string]string `json:"digest"`
	}
	if err := json.Unmarshal(s.Subject, &subjects); err != nil {
		return nil, fmt.Errorf("%w: the subjects of a statement are not a list", errNotSignature)
	}
	for _, subject := range subjects {
		s.digests = append(s.digests, digestPrefix+subject.Digest["sha256"])
	}
	return s, nil
}

func (s *statement) signature(payload []byte) *signature {
	return &signature{digests: s.digests, statement: s, payloadDigest: digestOf(payload), end: func() {}}
}

// The older form of attestations: a layer is an envelope, and its annotations are the rest.
const envelopeMediaType = "application/vnd.dsse.envelope.v1+json"

func parseEnvelope(data []byte, annotations map[string]string, accepted []string) (*signature, error) {
	var envelope dsse.Envelope
	if err := registry.Bounded(data); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &envelope); err != nil {
		return nil, fmt.Errorf("invalid envelope: %w", err)
	}
	if len(envelope.Signatures) != 1 || len(envelope.Signatures[0].Sig) > maxField {
		return nil, fmt.Errorf("%w: an envelope must have one signature of at most %d bytes", registry.ErrTooLarge, maxField)
	}
	payload, err := base64.StdEncoding.DecodeString(envelope.Payload)
	if err != nil {
		return nil, fmt.Errorf("invalid envelope: %w", err)
	}
	said, err := parseStatement(envelope.PayloadType, payload, accepted)
	if err != nil {
		return nil, err
	}
	made, err := base64.StdEncoding.DecodeString(envelope.Signatures[0].Sig)
	if err != nil {
		return nil, fmt.Errorf("invalid envelope: %w", err)
	}
	s := said.signature(payload)
	return s, s.annotate(annotations, func(b *protobundle.Bundle, _ string) {
		b.Content = &protobundle.Bundle_DsseEnvelope{DsseEnvelope: &protodsse.Envelope{
			Payload: payload, PayloadType: envelope.PayloadType, Signatures: []*protodsse.Signature{{Sig: made}},
		}}
	})
}

func acceptedTypes(leaves []*leaf) (types []string) {
	for _, l := range leaves {
		if l.signed.Statement != nil {
			types = append(types, l.signed.Statement.PredicateType)
		}
	}
	return unique(types)
}

// errOther is returned for a statement of another type than the leaf requires, or for a signature where it requires a
// statement.
var errOther = errors.New("not what is required")

func (l *leaf) is(s *signature) error {
	want, got := requirement.SignatureType, requirement.SignatureType
	if l.signed.Statement != nil {
		want = l.signed.Statement.PredicateType
	}
	if s.statement != nil {
		got = s.statement.PredicateType
	}
	switch {
	case want == got:
		return nil
	case want == requirement.SignatureType:
		return fmt.Errorf("%w: an attestation of type %s", errNotSignature, clean(got))
	case got == requirement.SignatureType:
		return fmt.Errorf("%w: a signature, and not an attestation", errOther)
	}
	return fmt.Errorf("%w: an attestation of type %s", errOther, clean(got))
}

var errCondition = errors.New("does not meet its conditions")

type evaluation struct {
	payload string // its digest
	wanted  *requirement.Statement
}

type evaluated struct {
	condition.Result

	err  error
	seen []string // of each condition; only with run.list
}

// evaluate compares the predicate of a statement with the conditions of a leaf. Copies of the statement are compared
// once.
func (r *run) evaluate(ctx context.Context, l *leaf, s *signature) evaluated {
	want := l.signed.Statement
	if len(want.Conditions) == 0 {
		return evaluated{Result: condition.Result{Met: true}}
	}
	key := evaluation{s.payloadDigest, want}
	if known, ok := r.evaluated[key]; ok {
		return known
	}
	if s.predicate == nil && s.unread == nil {
		s.unread = s.decode(ctx)
	}
	got, now := evaluated{err: s.unread}, time.Now()
	if got.err == nil {
		if got.Result, got.err = l.conditions.Evaluate(ctx, s.predicate, now); got.err == nil && !got.Met {
			why := safetext.ASCII(got.Why, maxMiss)
			got.err = fmt.Errorf("the attestation of type %s %w: %s", want.PredicateType, errCondition, why)
		}
		if r.list {
			got.seen = l.conditions.Describe(ctx, s.predicate, now)
		}
	}
	if ctx.Err() == nil {
		r.evaluated[key] = got
	}
	return got
}

const (
	// maxPredicateParts bounds how many objects and elements a predicate has; a report of a scanner has about one for
	// each 25 bytes of its text. maxPredicateDepth bounds how deep they are nested, and predicatePart is how much memory
	// one takes.
	maxPredicateParts, maxPredicateDepth = 120_000, 64
	predicatePart                        = 350
)

// decode reads the predicate of the statement, which is an object. s.end ends what it occupies.
func (s *signature) decode(ctx context.Context) (err error) {
	data := s.statement.Predicate
	parts, depth := registry.Parts(data)
	if parts > maxPredicateParts || depth > maxPredicateDepth {
		return fmt.Errorf("%w: a predicate has more than %d parts, or is nested deeper than %d",
			registry.ErrTooLarge, maxPredicateParts, maxPredicateDepth)
	}
	if s.end, err = registry.Decoding(ctx, int64(parts)*predicatePart); err != nil {
		return err
	}
	if err := json.Unmarshal(data, &s.predicate); err != nil || s.predicate == nil {
		return errNoObject
	}
	return nil
}

var errNoObject = errors.New("the predicate of the attestation is not an object")

package records_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
)

// stored returns one value of each bucket, with its key.
func stored(tb testing.TB) map[string][3][]byte {
	tb.Helper()
	p := pair(id1, app)
	in := records.Intent{ID: 7, Name: app + ":v1", Repository: app, Begun: noon()}
	all := map[string][3][]byte{}
	for bucket, value := range map[string]struct {
		key []byte
		v   any
	}{
		"records": {key(p), records.Record{Pair: p, Created: noon(), Proofs: []records.Proof{
			{Credential: alice, Secrets: []records.SecretRef{{UID: "u", Namespace: "n", Name: "s"}}, LastUsed: noon()},
		}}},
		"marks":        {key(p), records.Mark{Pair: p, Set: noon(), Origin: "start"}},
		"intents":      {[]byte(app + "\x00\x00\x00\x00\x00\x00\x00\x00\x07"), in},
		"endorsements": {append(key(p), "\x00"+signedByTeam...), endorsement(p, signedByTeam)},
		"meta":         {[]byte("distrust"), records.Distrust{Since: noon(), Reason: "lost"}},
	} {
		b := testkit.Value(records.Encode(bucket, value.key, value.v))(tb)
		all[bucket] = [3][]byte{[]byte(bucket), value.key, b}
	}
	return all
}

func FuzzDecodeAcceptsOnlyWhatEncodeMade(f *testing.F) {
	for _, seed := range stored(f) {
		bucket, key, value := string(seed[0]), seed[1], seed[2]
		f.Add(bucket, key, value)
		f.Add("records", key, value)
		f.Add(bucket, append(bytes.Clone(key), 0), value)
		f.Add(bucket, key, value[:len(value)-1])
		f.Add(bucket, key, append(bytes.Clone(value), ' '))
		f.Add(bucket, key, value[:4])
	}
	f.Add("records", []byte{}, []byte{})
	f.Add("records", []byte(nil), []byte{0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, bucket string, key, value []byte) {
		into, err := records.Decode(bucket, key, value)
		if err != nil {
			if !errors.Is(err, records.ErrUnreadable) && !errors.Is(err, records.ErrNewerFormat) {
				t.Errorf("Decode = %v; want ErrUnreadable", err)
			}
			return
		}
		if again, err := records.Encode(bucket, key, into); err != nil || !bytes.Equal(again, value) {
			t.Errorf("Decode accepted %q, Encode makes %q, %v", value, again, err)
		}
	})
}

func FuzzDecodeOfAnySummedJSONNeverPanics(f *testing.F) {
	for _, seed := range stored(f) {
		f.Add(string(seed[0]), seed[1], seed[2][4:])
	}
	for _, payload := range []string{
		"null", "[]", `"x"`, "{}", `{"proofs":[null]}`, `{"opened":"x"}`, `{"unknown":1}`,
		"1e999",
	} {
		f.Add("records", []byte("key"), []byte(payload))
	}
	f.Fuzz(func(t *testing.T, bucket string, key, payload []byte) {
		if !json.Valid(payload) {
			return
		}
		value := testkit.Value(records.Encode(bucket, key, json.RawMessage(payload)))(t)
		if _, err := records.Decode(bucket, key, value); err != nil && !errors.Is(err, records.ErrUnreadable) &&
			!errors.Is(err, records.ErrNewerFormat) {
			t.Errorf("Decode(%s) = %v; want nil or ErrUnreadable", payload, err)
		}
	})
}

func TestDecodeRefusesEveryFlippedBit(t *testing.T) {
	for name, seed := range stored(t) {
		bucket, key, value := string(seed[0]), seed[1], seed[2]
		for bit := range 8 * len(value) {
			flipped := bytes.Clone(value)
			flipped[bit/8] ^= 1 << (bit % 8)
			if _, err := records.Decode(bucket, key, flipped); !errors.Is(err, records.ErrUnreadable) {
				t.Errorf("bit %d of %s: Decode = %v; want ErrUnreadable", bit, name, err)
			}
		}
		for bit := range 8 * len(key) {
			moved := bytes.Clone(key)
			moved[bit/8] ^= 1 << (bit % 8)
			if _, err := records.Decode(bucket, moved, value); !errors.Is(err, records.ErrUnreadable) {
				t.Errorf("bit %d of the key of %s: Decode = %v; want ErrUnreadable", bit, name, err)
			}
		}
	}
}

package records_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/credential"
)

// manyProofs returns a record of as many proofs as a record can have, as a pull with a pull secret writes them.
func manyProofs(p records.Pair) records.Record {
	r := records.Record{Pair: p, Created: noon(), LastUsed: noon()}
	for i := range records.MaxProofs {
		t := noon().Add(time.Duration(i)*time.Second + 123456789)
		r.Proofs = append(r.Proofs, records.Proof{
			Credential:  credential.ID(fmt.Sprintf("%064x", i*0x9e3779b9)),
			Secrets:     []records.SecretRef{{UID: fmt.Sprintf("7f1d3c52-0000-4000-8000-%012d", i), Namespace: fmt.Sprintf("team-%d", i), Name: "registry"}},
			FirstProved: t, LastProved: t, LastUsed: t, Namespace: fmt.Sprintf("team-%d", i),
		})
	}
	return r
}

// decoded returns what encoding/json decodes from a payload.
func decoded[T any](payload string) (v T, err error) {
	d := json.NewDecoder(strings.NewReader(payload))
	d.DisallowUnknownFields()
	return v, d.Decode(&v)
}

func TestRecordsAreDecodedWithoutJSON(t *testing.T) {
	secret := func(name string) records.SecretRef { return records.SecretRef{UID: "u", Namespace: "n", Name: name} }
	full := records.Proof{
		Credential: alice, Secrets: []records.SecretRef{secret("a"), secret("b")}, FirstProved: at(1), LastProved: at(2), LastUsed: at(3),
		Denied: at(4), RotatedFrom: []credential.ID{bob, alice}, Namespace: "n",
	}
	p := pair(id1, app)
	for name, r := range map[string]records.Record{
		"no proofs":                          {Pair: p, Created: at(0)},
		"open":                               {Pair: p, Open: true, Opened: at(1), Created: at(0), LastUsed: at(2)},
		"gone":                               {Pair: p, Created: at(0), Revoked: at(1), Gone: at(2)},
		"every field":                        {Pair: p, Open: true, Opened: at(1), Created: at(0), LastUsed: at(2), Proofs: []records.Proof{full, full}, Revoked: at(3), Unlisted: true, Gone: at(4)},
		"zero values":                        {Proofs: []records.Proof{{}, {Secrets: []records.SecretRef{{}}, RotatedFrom: []credential.ID{""}}}},
		"local times":                        {Pair: p, Created: at(0).Local(), LastUsed: time.Now()},
		"fraction":                           {Pair: p, Created: at(0).Add(120 * time.Millisecond), LastUsed: at(0).Add(1)},
		"leap day":                           {Pair: p, Created: time.Date(2028, 2, 29, 23, 59, 59, 999999999, time.UTC)},
		"many proofs":                        manyProofs(p),
		"years":                              {Pair: p, Created: time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC), LastUsed: time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)},
		"second proof longer than the first": {Pair: p, Created: at(0), Proofs: []records.Proof{{Credential: alice}, full, full, full}},
	} {
		payload, err := json.Marshal(r)
		must(t, err)
		got, ok := records.RecordOf(string(payload))
		want, err := decoded[records.Record](string(payload))
		if diff := cmp.Diff(want, got); !ok || err != nil || diff != "" {
			t.Errorf("%s: recordOf(%s) = %v, json %v (-json +recordOf):\n%s", name, payload, ok, err, diff)
		}
	}
}

// TestSecretsOfOneProofDoNotOverwriteThoseOfTheNext appends to the Secrets of a decoded proof.
func TestSecretsOfOneProofDoNotOverwriteThoseOfTheNext(t *testing.T) {
	payload, err := json.Marshal(manyProofs(pair(id1, app)))
	must(t, err)
	r, _ := records.RecordOf(string(payload))
	for i := range r.Proofs {
		_ = append(r.Proofs[i].Secrets, records.SecretRef{Name: "another"})
	}
	if diff := cmp.Diff(manyProofs(pair(id1, app)), r); diff != "" {
		t.Error(diff)
	}
}

func TestWhatEncodeDoesNotWriteIsLeftToJSON(t *testing.T) {
	whole, err := json.Marshal(records.Record{Pair: pair(id1, app), Created: at(0), Proofs: []records.Proof{{Credential: alice}}})
	must(t, err)
	for old, changed := range map[string]string{
		`"created":`:     `"created": `,
		`team/app"`:      `team/\u0061pp"`,
		`team/app`:       "team/\xffapp",
		`team/ap`:        "team/äp",
		`team/a`:         "team/\x00a",
		`"2026-05-04T1`:  `"2026-02-30T1`,
		`2026-05-04T12`:  `2026-05-04T24`,
		`04T12:00:00Z`:   `04T12:00:60Z`,
		`4T12:00:00Z`:    `4T12:00:00.Z`,
		`T12:00:00Z`:     `T12:00:00.0123456789Z`,
		`12:00:00Z`:      `12:00:00+24:00`,
		`12:00:00Z"`:     `12:00:00"`,
		`2:00:00Z"`:      `2:00:00z"`,
		`{"pair":`:       `{"unknown":1,"pair":`,
		`"proofs":[{`:    `"proofs":[null,{`,
		`}]}`:            `}]} `,
		`}]`:             `},]`,
		`"proofs":`:      `"open":true,"proofs":`,
		`0001-01-01T00:`: `0001-01-01T0x:`,
	} {
		payload := strings.Replace(string(whole), old, changed, 1)
		if payload == string(whole) {
			t.Fatalf("%s is not in %s", old, whole)
		}
		if r, ok := records.RecordOf(payload); ok {
			t.Errorf("recordOf(%s) = %v; want it refused", payload, r)
		}
	}
	for end := range whole {
		if _, ok := records.RecordOf(string(whole[:end])); ok {
			t.Errorf("recordOf(%s) is accepted", whole[:end])
		}
	}
}

// FuzzRecordOf compares recordOf with encoding/json, and recordFor with recordOf.
func FuzzRecordOf(f *testing.F) {
	r := manyProofs(pair(id1, app))
	r.Proofs = r.Proofs[:3]
	r.Proofs[1].RotatedFrom, r.Proofs[1].Denied = []credential.ID{alice, bob}, at(9)
	for _, r := range []records.Record{r, {}, {Pair: pair(id1, app), Open: true, Opened: at(1), Created: at(2), Revoked: at(3), Unlisted: true, Gone: at(4)}} {
		payload, err := json.Marshal(r)
		must(f, err)
		f.Add(payload)
		f.Add(bytes.ReplaceAll(payload, []byte("Z\""), []byte("+02:00\"")))
		f.Add(bytes.ReplaceAll(payload, []byte("Z\""), []byte(".5Z\"")))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		records.RecordFor(string(payload), alice) // does not panic
		got, ok := records.RecordOf(string(payload))
		if !ok {
			return
		}
		of := []credential.ID{alice}
		for i := range got.Proofs {
			of[0] = got.Proofs[i].Credential
			some, proved, ok := records.RecordFor(string(payload), of...)
			if diff := cmp.Diff(only(&got, of), &some); !ok || !proved || diff != "" {
				t.Errorf("recordFor(%q, %v), proved %v, %v (-recordOf +recordFor):\n%s", payload, of, proved, ok, diff)
			}
		}
		if some, proved, ok := records.RecordFor(string(payload)); !ok || proved != (len(got.Proofs) > 0) || some.Proofs != nil {
			t.Errorf("recordFor(%q) = %v, proved %v, %v; want no proofs", payload, some, proved, ok)
		}
		want, err := decoded[records.Record](string(payload))
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("recordOf accepts %q, json %v (-json +recordOf):\n%s", payload, err, diff)
		}
	})
}

func TestEndorsementsAreDecodedWithoutJSON(t *testing.T) {
	p := pair(id1, app)
	for name, e := range map[string]records.Endorsement{
		"zero value":  {},
		"one signer":  endorsement(p, signedByTeam),
		"no signer":   {Pair: p, Requirement: signedByTeam, Digest: "sha256:d1", At: at(1)},
		"every field": {Pair: p, Requirement: signedByTeam, Digest: "sha256:d1", Signers: []string{"a", "", "b"}, At: at(1), Until: at(2)},
	} {
		payload, err := json.Marshal(e)
		must(t, err)
		got, ok := records.ReadEndorsement(string(payload))
		want, err := decoded[records.Endorsement](string(payload))
		if diff := cmp.Diff(want, got); !ok || err != nil || diff != "" {
			t.Errorf("%s: %s is read %v, json %v (-json +read):\n%s", name, payload, ok, err, diff)
		}
		for end := range payload {
			if _, ok := records.ReadEndorsement(string(payload[:end])); ok {
				t.Errorf("%s is accepted", payload[:end])
			}
		}
	}
}

// FuzzReadEndorsement compares readEndorsement with encoding/json.
func FuzzReadEndorsement(f *testing.F) {
	e := endorsement(pair(id1, app), signedByTeam)
	e.Until, e.Signers = at(2), []string{"a", "b"}
	for _, e := range []records.Endorsement{e, {}, endorsement(pair(id1, app), signedByTeam)} {
		payload, err := json.Marshal(e)
		must(f, err)
		f.Add(payload)
		f.Add(bytes.ReplaceAll(payload, []byte("team"), []byte(`t\u0065am`)))
		f.Add(bytes.ReplaceAll(payload, []byte("Z\""), []byte(".5Z\"")))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		got, ok := records.ReadEndorsement(string(payload))
		if !ok {
			return
		}
		want, err := decoded[records.Endorsement](string(payload))
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("readEndorsement accepts %q, json %v (-json +read):\n%s", payload, err, diff)
		}
	})
}

func BenchmarkDecode100Proofs(b *testing.B) {
	p := pair(id1, app)
	value, err := records.Encode("records", key(p), manyProofs(p))
	must(b, err)
	b.SetBytes(int64(len(value)))
	b.ReportAllocs()
	for b.Loop() {
		var r records.Record
		if err := records.Decode("records", key(p), value, &r); err != nil || len(r.Proofs) != records.MaxProofs {
			b.Fatal(err)
		}
	}
}

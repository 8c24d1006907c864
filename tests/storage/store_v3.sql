-- What makes the store of version 2 one of version 3, with a claim that lasts.
CREATE TABLE treecv_claims (
	"key" BLOB NOT NULL,
	owner VARCHAR(32) NOT NULL,
	expires DOUBLE NOT NULL,
	PRIMARY KEY ("key")
);
INSERT INTO "treecv_claims" VALUES(X'AB','5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f',4000000000.0);
UPDATE treecv_schema SET version = 3;
